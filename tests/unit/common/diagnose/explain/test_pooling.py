"""Poolings of tokens and of pixels."""

import numpy as np
import pytest

from common.diagnose.explain.pooling import find_pooling

STREAM = np.random.default_rng(0)
X = STREAM.standard_normal((4, 6, 8))
LENGTHS = np.array([3, 6, 2, 5])
REAL = (np.arange(6) < LENGTHS[:, None]).astype(int)
POOLED = {
    "the mean": X.mean(1),
    "the maximum": X.max(1),
    "the first token": X[:, 0],
    "the last token": X[:, -1],
    "the variance with the divisor n": X.var(1),
    "the standard deviation with the divisor n - 1": X.std(1, ddof=1),
    "the mean where real is 1": (X * REAL[..., None]).sum(1) / LENGTHS[:, None],
    "the last token where real is 1": X[np.arange(4), LENGTHS - 1],
}


@pytest.mark.parametrize("name", POOLED)
def test_a_pooling_is_found(name: str) -> None:
    assert find_pooling(X, POOLED[name], {"real": REAL}) == name
    assert find_pooling(X, POOLED[name] * 2, {"real": REAL}) is None


def test_a_pooling_of_channels_first_after_an_activation_is_found() -> None:
    images = STREAM.standard_normal((4, 3, 5, 5))
    assert find_pooling(images, np.maximum(images, 0).mean((2, 3)), {}) == "the mean"
    assert find_pooling(images, np.maximum(images, 0).max((2, 3)), {}) == "the maximum"


@pytest.mark.parametrize("axis", [1, 2])
def test_the_axis_of_a_pooling_of_as_many_tokens_as_features_is_found(axis: int) -> None:
    x = STREAM.standard_normal((4, 6, 6))
    assert find_pooling(x, x.max(axis), {}) == f"the maximum along axis {axis}"
