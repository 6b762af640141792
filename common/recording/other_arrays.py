"""Arrays of a script's batch that neither its model nor its loss function received.

The files that record run in the environment of the script: they import only NumPy, their framework and each
other, and run on Python 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np


def list_used(batch: Mapping[str, np.ndarray], received: Collection[object]) -> list[str]:
    """Return the names of the arrays of a batch that the model or the loss function received, also as a part of rows.

    Args:
        batch: The arrays of the batch by name.
        received: The arrays that the model and the loss function received. Samples of arrays are ignored.
    """
    arrays = [array for array in received if isinstance(array, np.ndarray)]
    return [
        name
        for name, leaf in batch.items()
        if any(_are_equal(leaf, array) or _is_part(leaf, array) for array in arrays)
    ]


def list_others(batch: Mapping[str, np.ndarray], received: Collection[object]) -> list[str]:
    """Return the names of the arrays of a batch that were not received as a whole.

    Args:
        batch: The arrays of the batch by name.
        received: The arrays that the model and the loss function received. Samples of arrays are ignored.
    """
    arrays = [array for array in received if isinstance(array, np.ndarray)]
    return [name for name, leaf in batch.items() if not any(_are_equal(leaf, array) for array in arrays)]


def list_keys(batch: Mapping[str, np.ndarray], received: Mapping[str, object]) -> dict[str, str]:
    """Return the name in the batch of the arrays that the model or the loss function received as they are, by name.

    Args:
        batch: The arrays of the batch by name.
        received: The arrays that the model and the loss function received, by name. Samples of arrays are ignored.
    """
    keys: dict[str, str] = {}
    unused = dict(batch)
    for name, array in received.items():
        equal = (key for key, leaf in unused.items() if isinstance(array, np.ndarray) and _are_equal(leaf, array))
        if (key := next(equal, None)) is not None:
            keys[name] = key
            del unused[key]
    return keys


def _are_equal(leaf: np.ndarray, array: np.ndarray) -> bool:
    """Check whether two arrays have the same numbers in the same order, whatever their shapes and types."""
    return leaf.size == array.size and bool(np.array_equal(leaf.reshape(-1), array.reshape(-1)))


def _is_part(leaf: np.ndarray, array: np.ndarray) -> bool:
    """Check whether an array joins arrays of the shape of a leaf, such as the views of images, and one is the leaf."""
    if not (leaf.size and leaf.ndim and array.ndim) or leaf.shape[1:] != array.shape[1:]:
        return False
    is_whole_number = len(array) > len(leaf) and len(array) % len(leaf) == 0
    return is_whole_number and any(np.array_equal(leaf, part) for part in array.reshape(-1, *leaf.shape))
