"""The padding of convolutions, recovered from their outputs."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from common.diagnose.explain.padding import Convolution, explain_cropping, explain_padding

STREAM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("groups", "stride", "dilation", "widths_a", "widths_b", "words"),
    [
        (1, 1, 2, (4, 0), (2, 2), "B pads 2 elements fewer along axis 1 than A"),
        (1, 2, 1, (1, 1), (0, 2), "B pads 1 element fewer along axis 1 than A"),
        (4, 2, 1, (0, 2), (1, 1), "B pads 1 element more along axis 1 than A"),
    ],
)
@pytest.mark.parametrize("has_channels_last", [True, False])
def test_the_offset_is_found(
    groups: int,
    stride: int,
    dilation: int,
    widths_a: tuple[int, int],
    widths_b: tuple[int, int],
    words: str,
    has_channels_last: bool,
) -> None:
    x, weight, bias = (torch.from_numpy(STREAM.standard_normal(shape)) for shape in ((2, 4, 9), (8, 4 // groups, 3), 8))
    arrays = [
        x,
        *(
            functional.conv1d(functional.pad(x, w), weight, bias, stride, 0, dilation, groups)
            for w in (widths_a, widths_b)
        ),
    ]
    x_array, a, b = (np.moveaxis(array.numpy(), 1, -1) if has_channels_last else array.numpy() for array in arrays)
    settings: dict[str, object] = {"stride": [stride], "dilation": [dilation]}
    explanation = explain_padding((settings, settings), x_array, (a, b), weight.numpy(), bias.numpy())
    assert explanation is not None and explanation.confirmed
    assert explanation.cause == "padding_position"
    assert words in explanation.sentence.replace("axis 2", "axis 1")
    assert explain_padding((settings, settings), x_array, (a, np.sin(b)), weight.numpy(), bias.numpy()) is None


def test_sizes_and_settings_that_do_not_fit_are_not_explained() -> None:
    stream = np.random.default_rng(1)
    x, a, b = (stream.standard_normal((2, 32, size, size)) for size in (34, 32, 32))
    weight, bias = stream.standard_normal((32, 1, 3, 3)), np.zeros(32)
    several: list[dict[str, object]] = [{}, {"stride": "same"}, {"stride": [2, 2, 2]}, {"dilation": 0}]
    for settings in several:
        assert explain_padding((settings, settings), x, (a, b), weight, bias) is None


def test_the_offsets_of_wide_windows_are_not_tried() -> None:
    x, weight = np.zeros((1, 1, 40, 40, 40)), np.zeros((1, 1, 3, 3, 3))
    convolution = Convolution(x, weight, np.zeros(1), (1, 1, 1), (12, 12, 12))
    assert convolution.find_offsets(np.zeros((1, 1, 40, 40, 40))) is None


@pytest.mark.parametrize("has_channels_last", [True, False])
def test_the_cropping_of_a_transposed_convolution_is_found(has_channels_last: bool) -> None:
    """PyTorch's padding=1 and output_padding=1 crop a row and a column at the start, Keras's padding="same" none."""
    x, weight = (torch.from_numpy(STREAM.standard_normal(shape)) for shape in ((2, 3, 5, 4), (3, 6, 3, 3)))
    a = functional.conv_transpose2d(x, weight, None, 2, 1, 1).numpy()
    b = functional.conv_transpose2d(x, weight, None, 2).numpy()[..., :10, :8]
    if has_channels_last:
        a, b = np.moveaxis(a, 1, -1), np.moveaxis(b, 1, -1)
    first_axis = 1 if has_channels_last else 2
    explanation = explain_cropping(a, b)
    assert explanation is not None and explanation.cause == "cropping_position"
    for axis in (first_axis, first_axis + 1):
        assert f"1 element fewer along axis {axis}" in explanation.sentence
    assert explain_cropping(a, a[..., ::-1]) is None and explain_cropping(a, np.sin(b)) is None


def test_the_cropping_of_equal_rows_is_the_smallest_one() -> None:
    """All moves along the axis of the rows fit."""
    row = STREAM.standard_normal((2, 1, 9, 3))
    a, b = (np.repeat(row[:, :, start : start + 8], 8, axis=1) for start in (1, 0))
    explanation = explain_cropping(a, b)
    assert explanation is not None
    assert explanation.sentence == "before the first element of the output, B crops 1 element fewer along axis 2 than A"
