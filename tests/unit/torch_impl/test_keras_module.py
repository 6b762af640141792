"""A Keras model as a module of PyTorch, in a process of its own, because a test process may have another backend."""

import pytest

from common.errors import UserError
from tests.conftest import Python
from torch_impl.keras_backend import build_module

CODE = """
import sys
import torch
from torch.func import functional_call
from torch_impl.keras_backend import prepare_keras
prepare_keras("float64", 0)
import keras, keras_hub
from torch_impl.batch_norm import find_moving_statistics
from torch_impl.keras_module import KerasModule

inputs = keras.Input((4,))
y = keras.layers.BatchNormalization()(keras.layers.Dense(3)(inputs))
model = KerasModule(keras.Model(inputs, keras.layers.Dense(2)(y)))
print(sorted(dict(model.named_parameters())))
print(sorted(find_moving_statistics(model)), [path for path, _ in model.named_modules()][1:])
x = torch.arange(20.0, dtype=torch.float64).view(5, 4)
copies = {name: parameter * 1 for name, parameter in model.named_parameters()}
before = model.train()(x)
mean = find_moving_statistics(model)["batch_normalization/moving_mean"]
assert mean.abs().sum() > 0 and mean is dict(model.named_buffers())["batch_normalization/moving_mean"]
functional_call(model, copies, (x,)).square().sum().backward()
gradients = [parameter.grad for parameter in model.parameters()]
assert all(gradient is not None for gradient in gradients)
assert torch.equal(model(x), before)
with torch.no_grad():
    dict(model.named_parameters())["dense/kernel"].mul_(2)
assert not torch.equal(model.eval()(x), model.train()(x))
assert before.dtype == torch.float64
"""
DEVICE = """
import torch
from torch_impl.keras_backend import prepare_keras
prepare_keras("float32", 0)
import keras
from torch_impl.keras_module import KerasModule

class Shift(keras.layers.Layer):
    def call(self, x):
        return x + keras.ops.ones(3)

inputs = keras.Input((4,))
model = KerasModule(keras.Model(inputs, Shift()(keras.layers.Dense(3)(inputs))))
print(model(torch.ones(2, 4)).device, model.to("meta")(torch.ones(2, 4, device="meta")).device)
"""
MASKED = """
import numpy as np
import torch
from torch_impl.keras_backend import prepare_keras
prepare_keras("float64", 0)
import keras
from torch_impl.keras_batch_norm import align_keras_batch_norm
from torch_impl.keras_module import KerasModule
x = np.random.default_rng(0).normal(size=(2, 3, 4))
real = np.array([[True, True, False], [True, False, False]])
x[~real] = -1
model = keras.Sequential([keras.Input((3, 4)), keras.layers.Masking(-1.0), keras.layers.BatchNormalization()])
module = KerasModule(model)
align_keras_batch_norm(module, False)
normalized = module.train()(torch.from_numpy(x)).detach().numpy()[real]
expected = (x[real] - x[real].mean(0)) / np.sqrt(x[real].var(0) + 1e-3)
print(np.abs(normalized - expected).max())
"""
END = 'print("tensorflow" in sys.modules)'


@pytest.fixture(scope="module")
def printed(python: Python) -> list[str]:
    """The lines that one process prints for all tests, because Keras and PyTorch are imported slowly."""
    return python(CODE + MASKED + DEVICE + END).strip().splitlines()[-5:]


@pytest.mark.slow
def test_variables_are_parameters_and_buffers_by_path(printed: list[str]) -> None:
    parameters, layers, *_, has_tensorflow = printed
    names = [*(f"{layer}/{role}" for layer in ("dense", "dense_1") for role in ("bias", "kernel"))]
    assert parameters == str(["batch_normalization/beta", "batch_normalization/gamma", *names])
    assert layers == (
        "['batch_normalization/moving_mean', 'batch_normalization/moving_variance'] "
        "['input_layer', 'dense', 'batch_normalization', 'dense_1']"
    )
    assert has_tensorflow == "False"


@pytest.mark.slow
def test_a_model_computes_on_the_device_of_its_variables(printed: list[str]) -> None:
    assert printed[3].split() == ["cpu", "meta"]


@pytest.mark.slow
def test_masked_values_do_not_count(printed: list[str]) -> None:
    assert float(printed[2]) < 1e-12


class Layer:
    """A stand-in for the class of Keras 2, which would import TensorFlow."""

    __module__ = "tf_keras.src.engine.base_layer"


def test_a_model_of_keras_2_is_refused_on_the_side_of_pytorch() -> None:
    with pytest.raises(UserError, match=r"Layer: returned Layer of Keras 2, which computes only with TensorFlow; name"):
        build_module("model.torch", f"{__name__}:Layer", {}, seed=0)
