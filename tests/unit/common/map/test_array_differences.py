"""Relative differences of arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.map.array_differences import BLOCK_SIZE, relative_difference


@given(st.integers(1, 3 * BLOCK_SIZE), st.floats(1e-12, 10), st.integers(0, 2**32 - 1))
def test_a_difference_is_relative_to_the_larger_norm(size: int, scale: float, seed: int) -> None:
    stream = np.random.default_rng(seed)
    a = stream.uniform(1, 2, size)
    b = a + scale * stream.standard_normal(size)
    expected = np.linalg.norm(a - b) / max(np.linalg.norm(a), np.linalg.norm(b))
    assert relative_difference(a, b) == pytest.approx(expected, rel=1e-9)
    assert relative_difference(a, a) == 0
    assert relative_difference(a.reshape(1, -1).T, b) == relative_difference(a, b)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_an_element_that_is_not_finite_equals_the_same_only(value: float) -> None:
    a, b = np.array([1.0, value]), np.array([1.0, 2.0])
    assert relative_difference(a, b) == relative_difference(a, -a) == np.inf
    assert relative_difference(a, a.copy(), equal_nan=True) == 0
    assert relative_difference(a, a.copy()) == (np.inf if np.isnan(value) else 0)


def test_small_elements_differ_although_an_element_is_large() -> None:
    a = np.array([1.0, 2.0, 3.0, -1e9])
    assert relative_difference(a, a + np.array([0, 0, 0.1, 0])) == pytest.approx(0.1 / np.linalg.norm([1, 2, 3.1]))
