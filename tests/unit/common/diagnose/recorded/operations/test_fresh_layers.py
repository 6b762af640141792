"""Tests of layers that a script makes anew in each forward pass."""

import pytest

from common.diagnose.recorded.operations.fresh_layers import describe_fresh_layer
from common.recording.operation_format import Operation, OperationTrace

CODE = "x = nn.Linear(3, 4)(x)"


def _make(name: str, inputs: list[int], outputs: list[int], line: int = 7, file: str = "model.py") -> Operation:
    return {
        "name": name,
        "arguments": {},
        "inputs": inputs,
        "outputs": outputs,
        "layer": "",
        "file": file,
        "line": line,
        "code": CODE,
    }


def _trace(*operations: Operation) -> OperationTrace:
    return {"tensors": [], "operations": [*operations], "names": {}, "loss": None, "complete": True}


@pytest.mark.parametrize("initializer", ["kaiming_uniform_", "uniform_", "ones_", "trunc_normal_"])
def test_a_layer_whose_own_line_initializes_its_parameters_is_described(initializer: str) -> None:
    trace = _trace(_make(initializer, [1], [1]), _make("linear", [0, 1], [2]))
    assert describe_fresh_layer(trace) == f"linear in model.py:7 `{CODE}`"


@pytest.mark.parametrize(
    "operations",
    [
        [_make("uniform_", [1], [1], line=3), _make("linear", [0, 1], [2])],  # a layer of the model
        [_make("uniform_", [1], [1]), _make("linear", [0, 3], [2])],  # other weights
        [_make("linear", [0, 1], [2]), _make("uniform_", [1], [1])],  # afterwards
        [_make("uniform_", [1], [1]), _make("mul", [0, 1], [2])],  # noise
        [_make("uniform_", [1], [1], line=0, file=""), _make("linear", [0, 1], [2], line=0, file="")],
    ],
)
def test_other_layers_are_not_described(operations: list[Operation]) -> None:
    assert describe_fresh_layer(_trace(*operations)) == ""
    assert describe_fresh_layer(None) == ""
