"""Models and losses that mix the examples of a batch: what they return for an example depends on the others beside it.

Replicas that compute parts of a batch would compute other values. A model is computed twice in evaluation mode, on a
batch and on copies of one of its examples. Both passes must return the same for this example, and the second pass the
same for all copies.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from common.errors import UserError
from common.map.array_differences import compute_norm, relative_difference
from common.map.description import Arrays, RecordedCall

TOLERANCE = 1e-9  # above the rounding errors of a float64 pass
SMALL_SHARE = 1e-4  # of the largest gradient's norm; the rounding errors of smaller gradients are relative to it


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


def find_mixed_gradient(compute: Callable[[slice], Arrays], count: int) -> str | None:
    """Return the first parameter whose gradient is not the sum of the gradients of both halves of a batch, or None.

    Args:
        compute: A function that computes the gradients of some of the examples. It may raise UserError.
        count: The number of examples.
    """
    if count < 2:
        return None
    try:
        whole, first, second = (compute(rows) for rows in (slice(None), slice(count // 2), slice(count // 2, None)))
    except UserError:  # the model may accept this number of examples only
        return None
    min_norm = SMALL_SHARE * max((compute_norm(gradient) for gradient in whole.values()), default=0)
    return next(
        (
            name
            for name, gradient in whole.items()
            if relative_difference(gradient, first[name] + second[name], min_norm) > TOLERANCE
        ),
        None,
    )


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
