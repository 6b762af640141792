"""Models that mix the examples of a batch: the outputs for an example depend on the other examples beside it.

Replicas that compute parts of a batch would compute other outputs. A model is computed twice in evaluation mode, on a
batch and on copies of one of its examples. For this example both passes must return the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.map.array_differences import relative_difference
from common.map.description import Arrays, RecordedCall

TOLERANCE = 1e-9  # above the rounding errors of a float64 pass


@dataclass(frozen=True)
class BatchPass:
    """A forward pass on a batch: the outputs by name, and the first call of each layer by path."""

    outputs: Arrays
    calls: Mapping[str, RecordedCall]


def choose_example(count: int) -> int:
    """Return the index of the example that is copied: one in the middle, as a layer may mix only earlier examples."""
    return count // 2


def find_mixing_layer(batch: BatchPass, copies: BatchPass) -> str | None:
    """Return the first layer that mixes examples, or None. "the model" says that only the code after the layers does.

    Args:
        batch: The pass on the batch.
        copies: The pass on copies of the example that `choose_example` returns, as many as the batch has examples.
    """
    counts = {len(array) for array in batch.outputs.values() if array.ndim}
    if len(counts) != 1:
        return None
    (count,) = counts
    if not any(_differs(array, copies.outputs[name], count) for name, array in batch.outputs.items()):
        return None
    layers = (
        path
        for path, call in batch.calls.items()
        if path in copies.calls and _differs(call.returned, copies.calls[path].returned, count)
    )
    return next(layers, "the model")


def _differs(a: np.ndarray | None, b: np.ndarray | None, count: int) -> bool:
    """Check whether two arrays of a number of examples differ for the copied example."""
    if a is None or b is None or a.shape != b.shape or a.shape[:1] != (count,) or a.dtype.kind != "f":
        return False
    index = choose_example(count)
    return bool(np.isfinite(a[index]).all()) and relative_difference(a[index], b[index]) > TOLERANCE
