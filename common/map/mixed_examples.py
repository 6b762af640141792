"""Models and losses that mix the examples of a batch: what they return for an example depends on the others beside it.

Replicas that compute parts of a batch would compute other values. A model is computed twice in evaluation mode, on a
batch and on copies of one of its examples. Both passes must return the same for this example, and the second pass the
same for all copies.
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
    """Return the first layer that mixes examples, or None. "the model" says that only code outside of the layers does.

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
        if path != "model" and path in copies.calls and _differs(call.returned, copies.calls[path].returned, count)
    )
    return next(layers, "the model")


def mixes_examples(batch: np.ndarray, copies: np.ndarray, index: int) -> bool:
    """Check whether values of a batch and of copies of one of its examples show that the examples are mixed.

    Args:
        batch: Values [n, ...] of the examples of a batch.
        copies: The same for n copies of one example.
        index: The index of this example in the batch.
    """
    expected = np.broadcast_to(batch[index], copies.shape)
    return bool(np.isfinite(batch[index]).all()) and relative_difference(expected, copies) > TOLERANCE


def _differs(a: np.ndarray | None, b: np.ndarray | None, count: int) -> bool:
    """Check whether what a layer returned for a number of examples and for copies shows that it mixes them."""
    if a is None or b is None or a.shape != b.shape or a.shape[:1] != (count,) or a.dtype.kind != "f":
        return False
    return mixes_examples(a, b, choose_example(count))
