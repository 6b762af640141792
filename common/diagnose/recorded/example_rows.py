"""Arrays of several micro-batches or processes with an example in each row."""

from collections.abc import Sequence

import numpy as np


def join_examples(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Join micro-batches along the first axis. Shorter ones are padded with zeros at the end of the other axes."""
    if len({array.ndim for array in arrays}) > 1:
        return arrays[0]
    longest = np.max([array.shape[1:] for array in arrays], axis=0).astype(int).tolist() if arrays[0].ndim > 1 else []
    padded = [
        np.pad(array, [(0, 0), *((0, size - length) for size, length in zip(longest, array.shape[1:], strict=True))])
        for array in arrays
    ]
    return np.concatenate(padded)


def split_examples(array: np.ndarray, count: int) -> np.ndarray:
    """Return an array with an example in each row. A script may have flattened texts for the loss function."""
    is_flat = array.ndim == 1 and 0 < count < len(array) and len(array) % count == 0
    return array.reshape(count, -1) if is_flat else array


def join_ranks(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Join the arrays of all processes; None if one is missing or has another shape."""
    recorded = [array for array in arrays if array is not None]
    if len(recorded) != len(arrays) or not recorded[0].ndim or len({array.shape[1:] for array in recorded}) > 1:
        return None
    return recorded[0] if len(recorded) == 1 else np.concatenate(recorded)
