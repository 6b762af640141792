"""The epsilon of a layer norm."""

import numpy as np
import pytest

from common.diagnose.explain.normalization import find_epsilon

STREAM = np.random.default_rng(0)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 1e-3])
def test_the_epsilon_of_a_layer_norm_is_found(epsilon: float) -> None:
    gamma, beta, x = STREAM.standard_normal(8), STREAM.standard_normal(8), STREAM.standard_normal((4, 6, 8)) * 0.05
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * gamma + beta
    assert find_epsilon(x, gamma, beta, y) == pytest.approx(epsilon, rel=1e-2)
    assert find_epsilon(x, gamma, beta, y + 1e-6) is None
    assert find_epsilon(x, gamma[:4], beta[:4], y) is None
