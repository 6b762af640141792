"""Norms of large arrays in float64, computed in blocks: copies of whole arrays take more time and memory than the sums.

These functions run in the environment of the script that is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BLOCK_SIZE = 1 << 14  # number of elements: a block fits into the cache


def iterate_blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the blocks of flattened arrays of one size."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, BLOCK_SIZE):
        yield tuple(array[start : start + BLOCK_SIZE] for array in flat)


def sum_squares(array: np.ndarray) -> float:
    """Return the sum of the squared elements."""
    return sum_products(array, array)


def add_elements(array: np.ndarray) -> tuple[float, float]:
    """Return the sum of the elements and the sum of their squares."""
    total = squares = 0.0
    for (block,) in iterate_blocks(array):
        values = block.astype(np.float64)
        total += float(values.sum())
        squares += _compute_scalar_product(values, values)
    return total, squares


def sum_squared_differences(a: np.ndarray, b: np.ndarray) -> float:
    """Return the sum of the squared differences of the elements of two arrays of one shape."""
    if a is b:
        return 0.0
    total = 0.0
    for block_a, block_b in iterate_blocks(a, b):
        difference = np.subtract(block_a, block_b, dtype=np.float64)
        total += _compute_scalar_product(difference, difference)
    return total


def sum_products(a: np.ndarray, b: np.ndarray) -> float:
    """Return the sum of the products of the elements of two arrays of one shape."""
    total = 0.0
    for block_a, block_b in iterate_blocks(a, b):
        values = block_a.astype(np.float64)
        total += _compute_scalar_product(values, values if a is b else block_b.astype(np.float64))
    return total


def _compute_scalar_product(a: np.ndarray, b: np.ndarray) -> float:
    """Return the scalar product. BLAS would wake the threads of its pool for each block."""
    return float(np.einsum("i,i->", a, b))
