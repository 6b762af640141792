"""Test that an observed model returns its gradients by the names of PyTorch's parameters."""

from types import SimpleNamespace

import keras
import numpy as np

from common.map.transformation import parse_transformation
from tf_impl.models.layout import TransformedParameter
from tf_impl.observed_model import ObservedModel


def test_the_first_of_two_biases_that_keras_adds_has_the_gradient() -> None:
    bias, kernel = keras.Variable(np.zeros(2)), keras.Variable(np.zeros((3, 2)))
    parameters = [
        TransformedParameter(bias, parse_transformation("bias_ih + bias_hh"), {"bias_ih": (2,), "bias_hh": (2,)}),
        TransformedParameter(kernel, parse_transformation("weight | transpose 1 0"), {"weight": (2, 3)}),
    ]
    observed = ObservedModel.__new__(ObservedModel)
    observed.model = SimpleNamespace(named_parameters=parameters, trainable_variables=[bias, kernel])
    gradients = observed._convert_to_torch([np.array([1.0, 2.0]), np.arange(6.0).reshape(3, 2)])
    assert {name: array.tolist() for name, array in gradients.items()} == {
        "bias_ih": [1, 2],
        "weight": [[0, 2, 4], [1, 3, 5]],
    }
