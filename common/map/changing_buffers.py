"""Buffers that forward passes in training mode change.

A buffer is here a buffer of PyTorch or a variable of Keras, other than BatchNorm's moving statistics.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import numpy as np
import xxhash

from common.errors import UserError
from common.map.description import Arrays, ObservedPass


def compute_checksums(arrays: Arrays) -> dict[str, int]:
    """Return a checksum of each array, because copies of all variables take as much memory as the model."""
    return {
        name: xxhash.xxh3_64_intdigest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        for name, array in arrays.items()
    }


def find_changes(before: Arrays, after: Arrays) -> Arrays:
    """Return copies of the variables that have changed, by name. Raise UserError if a shape has changed."""
    for name, array in before.items():
        if name in after and after[name].shape != array.shape:
            raise UserError(
                f"{name}: forward passes change its shape from {list(array.shape)} to {list(after[name].shape)}; keep "
                "its shape"
            )
    return {
        name: array.copy() for name, array in after.items() if name in before and not _is_equal(before[name], array)
    }


def find_buffers(
    compute: Callable[[int, slice], ObservedPass],
    passes: Sequence[ObservedPass],
    examples: int,
    statistics: Collection[str],
) -> dict[str, bool]:
    """Return the buffers that passes change, by name, and whether their new values depend on the examples.

    If not, every replica computes the same. Passes on the two halves of the examples show it.

    Args:
        compute: A function that computes a pass from a seed and some of the examples, always on the same variables.
        passes: Passes on all examples.
        examples: The number of examples.
        statistics: The names of BatchNorm's moving statistics, which do not count.
    """
    halves: list[ObservedPass] = []
    if any(observed.changed.keys() - set(statistics) for observed in passes) and examples > 1:
        with suppress(UserError):  # a model may accept this number of examples only
            halves = [
                compute(seed, rows) for seed, rows in enumerate((slice(examples // 2), slice(examples // 2, None)))
            ]
    observed_passes = [*passes, *halves]
    names = sorted({name for observed in observed_passes for name in observed.changed} - set(statistics))
    return {name: not (halves and _is_same_in_all(observed_passes, name)) for name in names}


def _is_same_in_all(passes: Sequence[ObservedPass], name: str) -> bool:
    """Check whether all passes gave a buffer the same new value."""
    arrays = [observed.changed.get(name) for observed in passes]
    first = arrays[0]
    return first is not None and all(array is not None and _is_equal(first, array) for array in arrays)


def _is_equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Check whether arrays are equal. NaN, which few arrays have, equals NaN; to look for it takes most of the time."""
    return np.array_equal(a, b) or (a.dtype.kind in "fc" and np.array_equal(a, b, equal_nan=True))


def describe_unequal_replicas(name: str) -> str:
    """Return the sentence about a buffer that should be the same in all replicas of a run, but is not."""
    return (
        f"{name}: differs between the replicas, though preparation saw no dependence on the examples; change it "
        "independently of the examples, or use strategy=single"
    )
