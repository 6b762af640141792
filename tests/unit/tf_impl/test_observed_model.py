"""The gradients that a diagnosis compares."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

from common.map.transformations import parse
from tf_impl.models.layout import TransformedParameter
from tf_impl.observed_model import ObservedModel


def test_of_two_biases_that_are_one_here_the_first_has_the_gradient() -> None:
    """PyTorch does not train the second."""
    bias, kernel = keras.Variable(np.zeros(2)), keras.Variable(np.zeros((3, 2)))
    named = [
        TransformedParameter(bias, parse("bias_ih + bias_hh"), {"bias_ih": (2,), "bias_hh": (2,)}),
        TransformedParameter(kernel, parse("weight | transpose 1 0"), {"weight": (2, 3)}),
    ]
    model: Any = SimpleNamespace(named_parameters=named, trainable_variables=[bias, kernel])
    subject = ObservedModel.__new__(ObservedModel)
    subject.model = model
    found = subject._by_name([np.array([1.0, 2.0]), np.arange(6.0).reshape(3, 2)])
    assert {name: each.tolist() for name, each in found.items()} == {
        "bias_ih": [1.0, 2.0],
        "weight": [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]],
    }
