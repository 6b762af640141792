"""The report of a process of one framework on one computation of its model, as plain NumPy arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from common.diagnose.rounding import measure_noise
from common.map.description import RecordedCall


@dataclass(frozen=True)
class Observation:
    """Everything that one model computed on one shard, which is a list of micro-batches.

    Attributes:
        outputs: Outputs [n, ...] of each micro-batch.
        losses: Losses [n] of each micro-batch.
        calls: The input and the output of each requested layer in the first micro-batch, by the layer's path.
        unflattened_shapes: Shape of an example before the model flattened it for a layer, by the layer's path.
        gradients: Gradients of the shard's part of the mean loss over the global batch, by parameter, in PyTorch's
            layout.
        reshaped_shapes: Shape of an example after the model divided the output of a linear layer into several axes.
        counts: Number of calls of each layer, by the layer's path.
    """

    outputs: list[np.ndarray]
    losses: list[np.ndarray]
    calls: Mapping[str, RecordedCall]
    unflattened_shapes: Mapping[str, tuple[int, ...]]
    gradients: dict[str, np.ndarray]
    reshaped_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CallNoise:
    """The noise of the input and the output of a layer; None: not measurable."""

    received: float | None
    returned: float | None


@dataclass(frozen=True)
class PerturbedObservation:
    """The report on a computation that was repeated with arrays moved by rounding.

    Attributes:
        outputs: As in `Observation`.
        losses: As in `Observation`.
        gradients: As in `Observation`.
        noise: The noise of each layer's tensors, by the layer's path.
    """

    outputs: list[np.ndarray]
    losses: list[np.ndarray]
    gradients: dict[str, np.ndarray]
    noise: Mapping[str, CallNoise]


def measure_perturbation(original: Observation, perturbed: Observation) -> PerturbedObservation:
    """Return the report on a perturbed computation. The noise of a layer is its difference from the original one."""
    noise = {}
    for path, call in original.calls.items():
        other = perturbed.calls.get(path, RecordedCall(None, None))
        pairs = (call.received, other.received), (call.returned, other.returned)
        noise[path] = CallNoise(*(_measure_pair(*arrays) for arrays in pairs))
    return PerturbedObservation(perturbed.outputs, perturbed.losses, perturbed.gradients, noise)


def _measure_pair(array: np.ndarray | None, perturbed: np.ndarray | None) -> float | None:
    if array is None or perturbed is None or array.shape != perturbed.shape:
        return None
    return measure_noise(array, perturbed)
