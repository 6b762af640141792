"""Tests of layouts: steps are those of a map file, in NumPy and PyTorch, and can be undone."""

import math

import numpy as np
import pytest
import torch

from common.config.keras_layout import parse_layout
from common.map.transformation import parse_transformation

CASES = {
    "transpose 1 0": (6, 4),
    "transpose 2 3 1 0": (5, 4, 3, 2),
    "transpose 1 0 | reshape 4 3 2": (6, 4),
    "reshape 3 2": (6,),
    "reshape 4 3 2 2 | transpose 2 3 1 0 | reshape 12 4": (4, 12),
    "blocks 1 0 2 | transpose 1 0": (6, 4),
    "transpose 1 0 | blocks 2 0 1 axis 1": (6, 4),
}


@pytest.mark.parametrize(("text", "shape"), CASES.items())
def test_layout_is_that_of_a_map_file(text: str, shape: tuple[int, ...]) -> None:
    layout, array = parse_layout(text), np.arange(math.prod(shape)).reshape(shape)
    expected = parse_transformation(f"weight | {text}").to_keras({"weight": array})
    converted = layout.to_keras(np, array)
    assert np.array_equal(converted, expected) and layout.find_shape(shape) == expected.shape
    assert np.array_equal(layout.to_torch(np, converted, shape), array)
    tensor = layout.to_keras(torch, torch.from_numpy(array))
    assert np.array_equal(tensor.numpy(), expected)
    assert np.array_equal(layout.to_torch(torch, tensor, shape).numpy(), array)
