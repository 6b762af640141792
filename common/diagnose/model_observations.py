"""Computations of the models of both sides on the same weights and examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.diagnose.layer_match import LayerMatch
from common.diagnose.observation import Observation
from common.diagnose.rounding import find_common_precision


@dataclass(frozen=True)
class ModelObservations:
    """Both models on A's first batch, from A's initial weights, with the noise of A's model.

    In an isolated computation every layer receives A's arrays, whatever the layer before it returned. A difference then
    belongs to one layer alone.

    Attributes:
        a: A's model.
        a_perturbed: A's model with every weight moved by one machine epsilon of the precision.
        a_isolated: A's model with weights and layer inputs moved by rounding, each layer isolated.
        b: B's model.
        b_isolated: B's model, each layer isolated.
        layers: Pairs of layers that hold the same parameters.
        batch: The first micro-batch, by array name.
        weights: A's initial weights, by parameter name.
        precision: Precision in which the sides train.
        is_one_framework: Whether both sides use the same framework.
    """

    a: Observation
    a_perturbed: Observation
    a_isolated: Observation
    b: Observation
    b_isolated: Observation
    layers: Sequence[LayerMatch]
    batch: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    precision: str = "float64"
    is_one_framework: bool = False

    @property
    def layer_noise(self) -> Observation:
        """The computation that measures the rounding errors of a single layer.

        Two frameworks in bfloat16 choose differently which operations stay in float32. Their layers are therefore
        compared with the noise of the whole model.
        """
        return self.a_isolated if self.is_one_framework or self.precision != "bfloat16" else self.a_perturbed

    def precision_of(self, a: np.ndarray, b: np.ndarray) -> str:
        """Return the precision in which two arrays of a layer are compared.

        If one framework trains in bfloat16, some of its layers still compute in float32 and are compared in that.
        """
        if self.is_one_framework and self.precision == "bfloat16":
            return find_common_precision(a, b)
        return self.precision
