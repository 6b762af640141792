"""Tests of recorded arrays that may replace those of a script."""

import numpy as np
import pytest

from common.diagnose.recorded.matched_arrays import has_like_shape


@pytest.mark.parametrize(
    ("shape", "template", "expected"),
    [
        ((4, 28, 28), (2, 32, 32, 1), True),
        ((4, 1, 28, 28), (2, 32, 32), True),
        ((4, 9, 1), (2, 7), True),
        ((4, 28, 28), (2, 32, 32, 3), False),
        ((4, 784), (2, 32, 32), False),
    ],
)
def test_floats_of_another_size_may_have_another_number_of_axes(
    shape: tuple[int, ...], template: tuple[int, ...], expected: bool
) -> None:
    arrays = np.zeros(shape, np.float32), np.zeros(template, np.float32)
    assert has_like_shape(*arrays) == expected
    integers = (array.astype(np.int64) for array in arrays)
    assert not has_like_shape(*integers)
