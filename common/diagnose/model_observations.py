"""Observations of the models of runs A and B, which compute from the same weights and examples.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.diagnose.array_layouts import convert_layout
from common.diagnose.layer_match import LayerMatch
from common.diagnose.observation import Observation, PerturbedObservation
from common.diagnose.rounding import find_common_precision


@dataclass(frozen=True)
class ModelObservations:
    """Three computations of A's model and two of B's model, on A's first batch with A's initial weights.

    In an isolated computation every layer receives the input of the same layer of A, whatever the layer before it
    returned. A difference then belongs to one layer alone. A perturbed computation of A shows how large the differences
    are that rounding alone causes, the noise.

    Attributes:
        a: Computation of A's model.
        a_perturbed: Computation of A's model with every weight moved by one machine epsilon of the precision.
        a_isolated: Isolated computation of A's model, with weights and layer inputs moved by one machine epsilon.
        b: Computation of B's model.
        b_isolated: Isolated computation of B's model.
        layers: Pairs of layers that hold the same parameters.
        batch: The first micro-batch, by array name.
        weights: A's initial weights, by parameter name.
        precision: Precision in which the sides train.
        is_one_framework: Whether both sides use the same framework.
        unpaired_a: Paths of A's layers with parameters that B lacks.
        unpaired_b: Paths of B's layers with parameters that A lacks.
    """

    a: Observation
    a_perturbed: PerturbedObservation
    a_isolated: PerturbedObservation
    b: Observation
    b_isolated: Observation
    layers: Sequence[LayerMatch]
    batch: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    precision: str = "float64"
    is_one_framework: bool = False
    unpaired_a: Sequence[str] = ()
    unpaired_b: Sequence[str] = ()

    @property
    def outputs_of_a(self) -> np.ndarray:
        """A's outputs for the first micro-batch, in the layout of B's: channels may be the second axis or the last."""
        a, b = self.a.outputs[0], self.b.outputs[0]
        converted = convert_layout(a, b) if a.ndim == b.ndim and a.shape != b.shape else None
        return a if converted is None else converted

    @property
    def layer_noise(self) -> PerturbedObservation:
        """The perturbed computation that shows the noise of a single layer.

        Two frameworks in bfloat16 choose differently which operations stay in float32. Their layers are therefore
        compared with the noise of the whole model, which is larger.
        """
        return self.a_isolated if self.is_one_framework or self.precision != "bfloat16" else self.a_perturbed

    def precision_of(self, a: np.ndarray, b: np.ndarray) -> str:
        """Return the precision in which two arrays of a layer are compared.

        If both runs use one framework and train in bfloat16, layers that compute in float32 are compared in float32.
        """
        if self.is_one_framework and self.precision == "bfloat16":
            return find_common_precision(a, b)
        return self.precision
