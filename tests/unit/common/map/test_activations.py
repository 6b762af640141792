"""The activations that two models compute between two layers, by their values."""

import numpy as np
import pytest

from common.map.activations import ACTIVATIONS, explain_activations
from common.map.description import RecordedCall

INPUTS = np.random.default_rng(0).standard_normal((4, 50)) * 3


def call(received: np.ndarray | None, returned: np.ndarray | None) -> RecordedCall:
    return RecordedCall(received, returned)


def explain(torch_name: str, keras_name: str) -> str | None:
    calls = [
        item
        for name in (torch_name, keras_name)
        for item in (call(None, INPUTS), call(np.asarray(ACTIVATIONS[name](INPUTS), np.float64), None))
    ]
    return explain_activations(*calls)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_is_distinguished(name: str) -> None:
    expected = None if name == "no activation" else f"PyTorch computes no activation, Keras {name}"
    assert explain("no activation", name) == expected


def test_another_function_is_not_named() -> None:
    before, after = call(None, INPUTS), call(INPUTS**3, None)
    assert explain_activations(before, after, before, call(INPUTS, None)) is None
    assert explain_activations(before, call(INPUTS[:2], None), before, after) is None
