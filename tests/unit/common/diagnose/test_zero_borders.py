"""Zeros around arrays that one side adds before a layer, and the other within it."""

import numpy as np
import pytest

from common.diagnose.array_layouts import convert_layout
from common.diagnose.zero_borders import fit_borders, strip_borders

X = np.random.default_rng(0).standard_normal((2, 3, 6, 6))


def pad(array: np.ndarray, start: int, end: int) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, 0), (start, end), (start, end)))


@pytest.mark.parametrize("borders", [(1, 1), (0, 1), (2, 0)])
def test_an_array_gets_the_borders_of_the_other_side(borders: tuple[int, int]) -> None:
    padded = pad(X, *borders)
    target = np.moveaxis(padded, 1, -1) + 0.0
    for array in (X, pad(X, 2, 2)):
        converted = convert_layout(array, target)
        assert converted is not None and np.array_equal(converted, target)
    fitted = fit_borders(padded, X)
    assert fitted is not None and np.array_equal(fitted, X)


def test_other_sizes_do_not_fit() -> None:
    assert convert_layout(X, np.ones((2, 8, 8, 3))) is None
    assert convert_layout(X, pad(X, 1, 1)[:1]) is None
    assert fit_borders(X, X) is None


def test_only_the_common_border_is_removed() -> None:
    stripped = strip_borders(pad(X, 2, 1), pad(X, 1, 2))
    assert stripped is not None
    assert np.array_equal(stripped[0], pad(X, 1, 0)) and np.array_equal(stripped[1], pad(X, 0, 1))
    assert strip_borders(X, pad(X, 1, 1)[..., 2:, 2:]) is None
