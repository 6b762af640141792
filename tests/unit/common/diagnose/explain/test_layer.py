"""Tests of the reasons why a layer returns other outputs for the same input."""

import numpy as np
import pytest

from common.diagnose.explain.layer import explain_layer
from common.diagnose.layer_match import LayerMatch
from common.map.description import RecordedCall

STREAM = np.random.default_rng(0)
X, WEIGHT, BIAS = STREAM.normal(size=(6, 4)), STREAM.normal(size=(3, 4)), STREAM.normal(size=3)


@pytest.mark.parametrize(("bias", "cause"), [(BIAS, "bias_ignored"), (np.zeros(3), "layer")])
def test_a_bias_of_zeros_is_not_ignored(bias: np.ndarray, cause: str) -> None:
    """A's layer returns something else if the bias is 0."""
    linear = X @ WEIGHT.T
    calls = RecordedCall(X, linear + bias if bias.any() else np.tanh(linear)), RecordedCall(X, linear)
    explanation = explain_layer(
        LayerMatch("linear", "fc", "fc", "fc"), *calls, {"fc.weight": WEIGHT, "fc.bias": bias}, {}
    )
    assert (explanation.cause, explanation.confirmed) == (cause, cause == "bias_ignored")
