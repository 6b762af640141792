"""Tests of the conversion of kernels between PyTorch and Keras. A Keras process answers each line with a line."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT

ANSWER = """
import json, math, sys
import keras
import numpy as np
from tf_impl.models.layout import NamedParameter

class WindowsReversed(NamedParameter):  # a fault: round trips are right, but convolutions are wrong
    def to_keras(self, arrays):
        return arrays[self.name].reshape(self.kernel).T.reshape(self.variable.shape)

    def to_torch(self, array, arrays):
        arrays[self.name] = array.reshape(self.kernel[::-1]).T.reshape(self.shape)

def parameter(request, variable):
    kernel = request["kernel"] and tuple(request["kernel"])
    kind = WindowsReversed if request.get("reversed") else NamedParameter
    return kind("weight", variable, tuple(request["shape"]), kernel)

def convert(request):
    converted = parameter(request, keras.Variable(np.zeros(request["variable"])))
    there = converted.to_keras({"weight": np.arange(math.prod(request["shape"])).reshape(request["shape"])})
    arrays = {}
    converted.to_torch(there, arrays)
    back = arrays["weight"]
    assert back.flags.c_contiguous and back.dtype == there.dtype == np.int64
    return {"there": there.tolist(), "back": back.tolist()}

def output(request):
    *before, last = [getattr(keras.layers, name)(**settings) for name, settings in request["layers"]]
    x = keras.ops.array(request["x"], dtype="float64")
    for layer in before:
        x = layer(x)
    last.build(x.shape)
    last.kernel.assign(parameter(request, last.kernel).to_keras({"weight": np.array(request["weight"], float)}))
    return np.array(last(x)).tolist()

keras.config.set_dtype_policy("float64")
for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = output(request) if "layers" in request else convert(request)
    except Exception as error:
        answer = {"error": repr(error)}
    print(json.dumps(answer), flush=True)
"""

Shape = tuple[int, ...]
Keras = Callable[..., Any]
sizes = st.integers(1, 4)


@pytest.fixture(scope="module")
def ask() -> Iterator[Keras]:
    command = [sys.executable, "-c", ANSWER]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def ask(**request: Any) -> Any:
            assert process.stdin is not None and process.stdout is not None
            print(json.dumps(request), file=process.stdin, flush=True)
            answer = json.loads(process.stdout.readline())
            assert "error" not in answer, answer
            return answer

        yield ask
        process.stdin.close()
        assert process.wait(600) == 0  # the timeout only ends a hang


@dataclass
class Kernel:
    """A kernel with its shapes in PyTorch and in Keras."""

    kernel: Shape  # (outputs, inputs, *window)
    shape: Shape  # the shape in PyTorch
    variable: Shape  # the shape in Keras

    def expected(self) -> np.ndarray:
        """Return the array that Keras must hold if PyTorch's values are 0, 1, 2, ..."""
        array = np.arange(math.prod(self.kernel)).reshape(self.kernel)
        return np.moveaxis(array, (0, 1), (-1, -2)).reshape(self.variable)


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """Draw kernels of linear layers, convolutions of 1 to 3 dimensions, attention heads and flattened convolutions."""
    heads, size, other = draw(sizes), draw(sizes), draw(sizes)
    window = tuple(draw(st.lists(sizes, max_size=3)))
    kind = draw(st.sampled_from(["kernel", "flattened", "heads of outputs", "heads of inputs"]))
    if kind == "heads of outputs":
        return Kernel((heads * size, other), (heads * size, other), (other, heads, size))
    if kind == "heads of inputs":
        return Kernel((other, heads * size), (other, heads * size), (heads, size, other))
    kernel = (heads, size, *window)
    if kind == "flattened":
        inputs = math.prod(kernel[1:])
        return Kernel(kernel, (heads, inputs), (inputs, heads))
    return Kernel(kernel, kernel, (*window, size, heads))


@pytest.mark.slow
@given(case=kernels())
@settings(max_examples=100)
def test_round_trips_restore_kernels(ask: Keras, case: Kernel) -> None:
    answer = ask(kernel=case.kernel, shape=case.shape, variable=case.variable)
    assert np.array_equal(answer["there"], case.expected())
    assert np.array_equal(answer["back"], np.arange(math.prod(case.shape)).reshape(case.shape))


scalar: tuple[int, ...] = ()


@pytest.mark.parametrize("shape", [(5,), (4, 3), scalar])
def test_arrays_that_are_no_kernels_stay_the_same(ask: Keras, shape: Shape) -> None:
    answer = ask(kernel=None, shape=shape, variable=shape)
    array = np.arange(math.prod(shape)).reshape(shape)
    assert np.array_equal(answer["there"], array) and np.array_equal(answer["back"], array)


def test_known_kernels(ask: Keras) -> None:
    dense = ask(kernel=[2, 3], shape=[2, 3], variable=[3, 2])
    assert dense == {"there": [[0, 3], [1, 4], [2, 5]], "back": [[0, 1, 2], [3, 4, 5]]}
    convolution = np.array(ask(kernel=[5, 4, 3, 2], shape=[5, 4, 3, 2], variable=[3, 2, 4, 5])["there"])
    assert convolution.shape == (3, 2, 4, 5)
    for height, width, inputs, outputs in np.ndindex(convolution.shape):
        value = ((outputs * 4 + inputs) * 3 + height) * 2 + width
        assert convolution[height, width, inputs, outputs] == value


def test_wrong_order_of_axes_is_noticed(ask: Keras) -> None:
    case = Kernel((2, 3, 2, 2), (2, 3, 2, 2), (2, 2, 3, 2))
    wrong = ask(kernel=case.kernel, shape=case.shape, variable=case.variable, reversed=True)
    assert np.array_equal(wrong["back"], np.arange(24).reshape(case.shape))
    assert not np.array_equal(wrong["there"], case.expected())


def convolve(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return PyTorch's convolution of x [inputs, *positions]: [outputs, *positions]."""
    window, axes = weight.shape[2:], tuple(range(1, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(x, window, axes)  # [inputs, *positions, *window]
    summed = (0, *range(x.ndim, x.ndim + len(window)))
    return np.tensordot(weight, windows, (range(1, weight.ndim), summed))


def convolution(dimensions: int) -> tuple[Any, ...]:
    layers = [[f"Conv{dimensions}D", {"filters": 2, "kernel_size": [2, 3, 2][:dimensions], "use_bias": False}]]
    weight = (2, 3, *(2, 3, 2)[:dimensions])
    return layers, (3, *(4, 5, 3)[:dimensions]), weight, weight, convolve


def linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x.reshape(-1) @ weight.T


def heads(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return linear(x, weight).reshape(2, 3)


DENSE = ["Dense", {"units": 4, "use_bias": False}]
QUERY = ["EinsumDense", {"equation": "bd,dhk->bhk", "output_shape": [2, 3]}]
OUTPUT = ["EinsumDense", {"equation": "bhk,hkd->bd", "output_shape": [4]}]
LAYERS = {  # layers, shape of an example in PyTorch, shape of the weight, kernel, and PyTorch's formula
    "Dense": ([DENSE], (3,), (4, 3), (4, 3), linear),
    "Conv1D": convolution(1),
    "Conv2D": convolution(2),
    "Conv3D": convolution(3),
    "a flattened convolution": ([["Flatten", {}], DENSE], (3, 2, 2), (4, 12), (4, 3, 2, 2), linear),
    "heads of a query": ([QUERY], (5,), (6, 5), (6, 5), heads),
    "heads of an attention's output": ([OUTPUT], (2, 3), (4, 6), (4, 6), linear),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_keras_layers_compute_what_pytorchs_compute(ask: Keras, name: str) -> None:
    layers, example_shape, shape, kernel, compute = LAYERS[name]
    stream = np.random.default_rng(0)
    x, weight = stream.integers(-9, 10, example_shape), stream.integers(-9, 10, shape)  # the sums are exact
    channels_last = x if layers[0][0] == "EinsumDense" else np.moveaxis(x, 0, -1)
    request = {"layers": layers, "x": channels_last[None].tolist(), "weight": weight.tolist(), "shape": shape}
    expected = compute(x, weight)
    if name.startswith("Conv"):
        expected = np.moveaxis(expected, 0, -1)
    assert np.array_equal(ask(**request, kernel=kernel)[0], expected)
    flat = shape if kernel != shape else None
    assert not np.array_equal(ask(**request, kernel=flat)[0], expected), "the result does not depend on the kernel axes"
