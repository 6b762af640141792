"""Diagnoses of scripts that compute no gradient of some of the variables that their optimizers update."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from common.diagnose.recorded.walk import diagnose_records
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript, draw_batches, draw_weights
from tests.unit.common.recording.tensors import Tensor, to_tensor


class WithoutGradients(NumpyScript):
    """A script that computes the gradients of its last layer only."""

    def backward(self, weights: Arrays, calls: Arrays, outputs_gradient: np.ndarray) -> Arrays:
        gradients = super().backward(weights, calls, outputs_gradient)
        return {name: gradient for name, gradient in gradients.items() if name.startswith("fc2")}


class WithZeros(NumpyScript):
    """A script whose gradients of the first layer are zeros."""

    def backward(self, weights: Arrays, calls: Arrays, outputs_gradient: np.ndarray) -> Arrays:
        gradients = super().backward(weights, calls, outputs_gradient)
        return {name: gradient * name.startswith("fc2") for name, gradient in gradients.items()}


def _list_causes(tmp_path: Path, a: NumpyScript, b: NumpyScript) -> list[tuple[str, str, str, bool]]:
    causes = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b")).causes
    return [(cause.cause, cause.tensor, cause.sentence, cause.confirmed) for cause in causes]


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_gradient_that_only_one_script_has_counts_as_zeros_in_the_other(side: str, tmp_path: Path) -> None:
    scripts = [WithoutGradients(optimizer="sgd", decay=0.0), NumpyScript(optimizer="sgd", decay=0.0)]
    causes = _list_causes(tmp_path, *(scripts if side == "A" else scripts[::-1]))
    assert causes == [
        (
            "no_gradient",
            name,
            f"step 1: {name}: its gradient is zero in {side}: frozen, or cut off from the loss",
            True,
        )
        for name in ("fc1.weight", "fc1.bias")
    ]
    assert _list_causes(tmp_path, scripts[0], WithZeros(optimizer="sgd", decay=0.0)) == []


def _trace(is_stopped: bool) -> OperationTrace:
    """Return the operations of the first step. is_stopped: whether no gradient is computed through the activation."""
    inputs, labels = draw_batches()[0]
    script = Script(**{"0": inputs})
    variables = {name: script.name(f"weight/{name}", to_tensor(array)) for name, array in draw_weights().items()}

    def apply(layer: str, x: Tensor) -> Tensor:
        weight, bias = variables[f"{layer}.weight"], variables[f"{layer}.bias"]
        return script.call("linear", lambda x, w, b: x @ w.T + b, x, weight, bias)

    active = script.call("relu", lambda x: np.maximum(x, 0), apply("fc1", script.inputs["0"]))
    active = script.call("detach", np.copy, active) if is_stopped else active
    outputs = script.name("batch/0/output/0", apply("fc2", active))
    losses = script.call("log_softmax", lambda x: -log_softmax(np.asarray(x), 1), outputs)
    return script.finish(script.call("mean", lambda x: np.mean(x[np.arange(len(labels)), labels]), losses))


class Traced(NumpyScript):
    """A script with recorded operations."""

    def _describe(self, writer: Any) -> None:
        super()._describe(writer)
        writer.write_operations(_trace(isinstance(self, WithoutGradients)))


class TracedWithoutGradients(Traced, WithoutGradients):
    pass


@pytest.mark.parametrize("side", ["A", "B"])
def test_the_operation_that_stops_the_gradients_is_the_only_cause(side: str, tmp_path: Path) -> None:
    scripts = [TracedWithoutGradients(optimizer="sgd", decay=0.0), Traced(optimizer="sgd", decay=0.0)]
    ((cause, _, sentence, confirmed),) = _list_causes(tmp_path, *(scripts if side == "A" else scripts[::-1]))
    assert (cause, confirmed) == ("stopped_gradient", True)
    assert sentence.startswith(f"step 1: only {side} computes no gradient through detach in test_lost_gradients.py:")
    assert sentence.endswith(": fc1.weight, fc1.bias get none")
