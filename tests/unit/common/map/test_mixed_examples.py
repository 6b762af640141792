"""Gradients that mix examples, and parameters on which no output depends."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.map.description import Arrays, ComputedPass
from common.map.mixed_examples import FACTORS, BatchGradients, observe_gradients, sketch_array


class ScaledModel:
    """A model that multiplies its input by a weight and a scale. It has a parameter that it does not use."""

    def __init__(self, scale: float, hook: Callable[[np.ndarray], np.ndarray]) -> None:
        """Draw the inputs. `hook` changes the gradient of the weight for each example, as a custom gradient may."""
        stream = np.random.default_rng(1)
        self.inputs = {"x": stream.standard_normal((4, 100))}
        self.scale, self.hook = scale, hook
        self.unconnected: set[str] = set()

    def compute(self, weights: Arrays, training: bool) -> ComputedPass:
        """Return the output for a weight of 3."""
        return ComputedPass({"output": 3 * self.scale * self.inputs["x"]}, {})

    def gradients(self, projections: Arrays) -> Arrays:
        """Return the gradients."""
        self.unconnected = {"unused"}
        factors = projections["output"] * self.inputs["x"]
        weight = self.hook(self.scale * factors).sum(0)
        return {"weight": weight, "scale": np.array(3 * factors.sum()), "unused": np.zeros(3)}


@pytest.mark.parametrize("scale", [2.0, 0.0])
def test_a_parameter_without_a_path_to_an_output_is_unused(scale: float) -> None:
    observed = observe_gradients(ScaledModel(scale, lambda gradients: gradients), {"output": np.zeros((4, 100))})
    # With a scale of 0, the gradient of the weight is 0, too, so that these weights do not show what is used
    assert observed == BatchGradients(None, {"unused"} if scale else None)


@pytest.mark.parametrize("hook", [lambda x: x / len(x), lambda x: x * np.linalg.norm(x), lambda x: x / np.abs(x).max()])
def test_a_gradient_that_depends_on_the_batch_is_found(hook: Callable[[np.ndarray], np.ndarray]) -> None:
    assert observe_gradients(ScaledModel(2.0, hook), {"output": np.zeros((4, 100))}).mixed == "weight"


@given(st.integers(1, 3 * len(FACTORS)), st.data())
def test_a_sketch_shows_that_one_element_differs(size: int, data: st.DataObject) -> None:
    a = np.random.default_rng(size).standard_normal(size)
    b = a.copy()
    b[data.draw(st.integers(0, size - 1))] += 1
    assert len(sketch_array(a)) == size // len(FACTORS) + 1
    assert np.abs(sketch_array(a) - sketch_array(b)).max() > 1e-3
    assert np.allclose(sketch_array(a) + sketch_array(b), sketch_array(a + b))
