"""Poolings of windows that compute an array from an earlier one, against PyTorch's."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from common.diagnose.explain.window_pooling import find_window_pooling

X = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 4, 9, 9)))


@pytest.mark.parametrize(
    ("pooled", "name"),
    [
        (functional.max_pool2d(X, 2), "the max of windows of 2, stride 2"),
        (
            functional.max_pool2d(X, 3, 2, 1),
            "the max of windows of 3, stride 2, padding 1 and 1 with zeros that do not",
        ),
        (
            functional.avg_pool2d(X, 3, 2, 1),
            "the mean of windows of 3, stride 2, padding 1 and 1 with zeros that count",
        ),
        (
            functional.avg_pool2d(X, 3, 2, 1, count_include_pad=False),
            "the mean of windows of 3, stride 2, padding 1 and 1 with zeros that do not count",
        ),
        (functional.max_pool2d(X, 2, ceil_mode=True), "the max of windows of 2, stride 2, padding 0 and 1"),
        (functional.max_pool2d(X, 4, ceil_mode=True), "the max of windows of 4, stride 4, padding 0 and 3"),
        (functional.avg_pool2d(X.relu(), 3), "relu, and then the mean of windows of 3, stride 3"),
    ],
)
@pytest.mark.parametrize("has_channels_last", [True, False])
def test_the_pooling_is_found(pooled: torch.Tensor, name: str, has_channels_last: bool) -> None:
    arrays = [np.moveaxis(array.numpy(), 1, -1) if has_channels_last else array.numpy() for array in (X, pooled)]
    assert (find_window_pooling(*arrays) or "").startswith(name)


def test_other_arrays_are_no_pooling() -> None:
    assert find_window_pooling(X.numpy(), X.numpy()[..., ::2, ::2]) is None
    assert find_window_pooling(X.numpy(), X.numpy()[:, 0]) is None


def test_a_single_window_has_the_usual_stride() -> None:
    pooled = functional.max_pool2d(X[..., :3, :3], 3).numpy()
    assert find_window_pooling(X[..., :3, :3].numpy(), pooled) == "the max of windows of 3, stride 3"
