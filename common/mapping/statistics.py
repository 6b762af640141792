"""BatchNorm's moving statistics after one training step on either side."""

import numpy as np

from common.mapping.description import Computed
from common.mapping.differences import Parts, relative
from common.mapping.pairing import Pairing
from common.mapping.parts import KerasArray, Part

Weights = dict[str, np.ndarray]


def compare_statistics(
    pairing: Pairing, weights: Weights, torch: Computed, keras: Computed, tolerance: float
) -> tuple[list[str], list[str]]:
    """Errors, and notes on what differs by definition: Keras's moving variance is biased, PyTorch's is not."""
    errors, notes = [], []
    for ours, theirs in _with_statistics(pairing.parts):
        name = f"{ours.path} (PyTorch) and {theirs.path} (Keras)"
        a, b = ours.settings.get("momentum"), theirs.settings.get("momentum")
        if not isinstance(a, float) or not isinstance(b, float) or abs(a - b) > 1e-12:
            wanted = f"{1 - a:g}" if isinstance(a, float) else "none: it averages all batches"
            has = f"{1 - b:g}" if isinstance(b, float) else str(b)
            errors.append(f"{name}: momentum {a} in PyTorch is {wanted} in Keras, which has {has}")
            continue
        for role in ("running_mean", "running_var"):
            before, after, other = _values(pairing, theirs, role, weights, torch, keras)
            expected = after
            if role == "running_var":
                count = _count(ours, torch)
                expected = (1 - a) * before + (after - (1 - a) * before) * (count - 1) / count
                notes.append(
                    f"{name}: the batch's variance enters the moving variance unbiased in PyTorch and biased in Keras, "
                    f"{count} / {count - 1} times as large; after this step they differ by {relative(after, other):.1e}"
                )
            if (difference := relative(expected, other)) > tolerance:
                errors.append(f"{name}: {role} differs by {difference:.1e} of its norm after a training step")
    return errors, notes


def _with_statistics(parts: Parts) -> Parts:
    return [(a, b) for a, b in parts if a.kind == "batch norm" and "running_mean" in a.arrays]


def _values(
    pairing: Pairing, theirs: Part, role: str, weights: Weights, torch: Computed, keras: Computed
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Before and after in PyTorch, after in Keras; in Keras's layout."""
    array = theirs.arrays[role]
    assert isinstance(array, KerasArray)
    (transformation,) = [each.transformation for each in pairing.pairs if each.keras == array.name]
    before, after = transformation.to_keras(weights), transformation.to_keras(torch.updated)
    return before, after, keras.updated[array.name]


def _count(ours: Part, torch: Computed) -> int:
    """How many values of a channel the batch has."""
    received = torch.calls[ours.path].received
    assert received is not None
    return received.size // received.shape[1]
