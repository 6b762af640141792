"""Tests of arrays of a batch in the layout of another script's, which may have images of another size."""

import numpy as np
import pytest

from common.diagnose.recorded.array_layouts import convert_to_layout

IMAGES = np.arange(2 * 3 * 6 * 5, dtype=np.float32).reshape(2, 3, 6, 5)
GRAY = IMAGES[:, 0]
SEQUENCE = GRAY[:, 0]


@pytest.mark.parametrize(
    ("array", "template", "expected"),
    [
        (IMAGES, (4, 8, 9, 3), np.moveaxis(IMAGES, 1, -1)),
        (np.moveaxis(IMAGES, 1, -1), (4, 3, 8, 9), IMAGES),
        (IMAGES, (4, 3, 8, 9), IMAGES),
        (GRAY, (4, 8, 9, 1), GRAY[..., None]),
        (GRAY, (4, 1, 8, 9), GRAY[:, None]),
        (GRAY[..., None], (4, 8, 9), GRAY),
        (GRAY[:, None], (4, 8, 9), GRAY),
        (SEQUENCE, (4, 7, 1), SEQUENCE[..., None]),
        (SEQUENCE[..., None], (4, 7), SEQUENCE),
    ],
)
def test_arrays_of_another_size_get_the_axes_of_the_template(
    array: np.ndarray, template: tuple[int, ...], expected: np.ndarray
) -> None:
    np.testing.assert_array_equal(convert_to_layout(array, np.zeros(template, np.float32)), expected)


@pytest.mark.parametrize("template", [np.zeros((4, 7, 1), np.int64), np.zeros((4, 7, 2), np.float32)])
def test_integers_and_several_channels_of_another_size_stay(template: np.ndarray) -> None:
    array = SEQUENCE.astype(template.dtype)
    assert convert_to_layout(array, template) is array
