"""Tests of layers of a script's own class that contain the activation of the layer of Keras."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.layer_match import LayerMatch
from common.diagnose.recorded.own_activation import has_own_activation

X = np.random.default_rng(0).normal(size=(8, 5))
ACTIVATED = np.logaddexp(0, X) - np.log(2)  # of a name that no table has
LAYER = LayerMatch("linear", "fc", "fc", "fc")


def _make_pair(activation: object, is_keras_first: bool = True) -> Any:
    keras = SimpleNamespace(layers=[{"path": "fc", "attributes": {"activation": activation}}])
    torch = SimpleNamespace(layers=[{"path": "fc", "attributes": {}}])
    sides = (keras, torch) if is_keras_first else (torch, keras)
    return SimpleNamespace(sides=sides, noise=1e-7, precision="float32")


@pytest.mark.parametrize("is_keras_first", [True, False])
def test_an_output_that_has_passed_the_activation_of_keras_is_no_difference(is_keras_first: bool) -> None:
    arrays = (X, ACTIVATED) if is_keras_first else (ACTIVATED, X)
    assert has_own_activation(_make_pair("shifted_softplus", is_keras_first), LAYER, *arrays)


@pytest.mark.parametrize(("activation", "result"), [("linear", ACTIVATED), (None, ACTIVATED), ("relu", X[::-1])])
def test_other_outputs_are_differences(activation: object, result: np.ndarray) -> None:
    assert not has_own_activation(_make_pair(activation), LAYER, X, result)


def test_equal_outputs_contain_no_activation() -> None:
    assert not has_own_activation(_make_pair("relu"), LAYER, X, X)
