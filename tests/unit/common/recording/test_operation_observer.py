"""Tests of the observer of operations."""

import gc
import itertools
import json

import pytest

from common.recording import operation_observer
from common.recording.operation_observer import OperationObserver
from tests.unit.common.recording.tensors import measure, to_tensor


def test_operations_name_their_tensors_and_lines() -> None:
    observer = OperationObserver(measure, [])
    received, weight = to_tensor([1, 2]), to_tensor([3, 4])
    observer.name_tensor("batch/0/input/0", received)
    product = received * weight
    observer.add("mul", {"function": print, "out": None}, [received, weight], [product], "fc1")  # the line
    loss = product.sum(keepdims=True)
    observer.add("sum", {"0": 1}, [product], [loss], "")
    trace = json.loads(json.dumps(observer.finish(loss)))
    multiply, total = trace["operations"]
    assert (multiply["inputs"], multiply["outputs"], total["inputs"], trace["loss"]) == ([0, 1], [2], [2], 3)
    assert (multiply["file"], multiply["layer"]) == ("test_operation_observer.py", "fc1")
    assert multiply["code"].endswith("# the line")
    assert total["line"] == multiply["line"] + 2
    assert trace["names"] == {"batch/0/input/0": 0}
    assert [tensor["sum"] for tensor in trace["tensors"]] == [3, 7, 11, 11]


def test_tensor_changed_in_place_has_another_number() -> None:
    observer = OperationObserver(measure, [])
    tensor = to_tensor([1, 2])
    observer.name_tensor("batch/0/input/0", tensor)
    tensor += 1
    observer.add("add_", {}, [tensor], [tensor], "")
    trace = observer.finish(tensor)
    assert (trace["operations"][0]["inputs"], trace["operations"][0]["outputs"], trace["loss"]) == ([0], [1], 1)
    assert [tensor["sum"] for tensor in trace["tensors"]] == [3, 5]


def test_tensor_changed_by_an_unknown_operation_has_another_number() -> None:
    observer = OperationObserver(measure, [])
    tensor = to_tensor([1, 2])
    observer.see(tensor)
    tensor += 1
    observer.see(tensor)
    observer.see(tensor, is_changed=True)
    assert [tensor["sum"] for tensor in observer.finish(None)["tensors"]] == [3, 5]


def test_observer_keeps_no_tensor_alive() -> None:
    """A later tensor at the same address is another one."""
    observer = OperationObserver(measure, [])
    for value in range(20):
        observer.name_tensor(str(value), to_tensor([value]))
        gc.collect(0)
    assert [tensor["sum"] for tensor in observer.finish(None)["tensors"]] == [*range(20)]


def test_line_of_the_framework_is_left_out() -> None:
    """Without a line of the script, no line is named."""
    observer = OperationObserver(measure, [__name__])
    observer.add("relu", {}, [], [], "")
    operation = observer.finish(None)["operations"][0]
    assert "test_operation_observer" not in operation["file"]


def test_long_arguments_are_left_out() -> None:
    observer = OperationObserver(measure, [])
    received, selected = to_tensor([1, 2]), to_tensor([1])
    observer.add("getitem", {"1": list(range(1000)), "2": [0, 1]}, [received], [selected], "")
    assert observer.finish(selected)["operations"][0]["arguments"] == {"2": [0, 1]}


def test_operations_of_the_loss_and_of_outputs_are_kept() -> None:
    """The loss is computed from what the sigmoid received."""
    observer = OperationObserver(measure, [])
    logits, probabilities, printed, loss = (to_tensor([number]) for number in range(4))
    observer.add("sigmoid", {}, [logits], [probabilities], "")
    observer.name_tensor("batch/0/output/0", probabilities)
    observer.add("round", {}, [probabilities], [printed], "")
    observer.add("binary_crossentropy", {}, [logits], [loss], "")
    names = [operation["name"] for operation in observer.finish(loss)["operations"]]
    assert names == ["sigmoid", "binary_crossentropy"]


def test_parts_of_a_part_are_parts_of_the_outer_operation() -> None:
    observer = OperationObserver(measure, [])
    x, hidden, unused, y = (to_tensor([number]) for number in range(4))
    with observer.collect_parts() as parts:
        with observer.collect_parts() as inner:
            observer.add("exp", {}, [x], [hidden], "")
        observer.add("Cell", {}, [x], [hidden], "", inner)
        observer.add("exp", {}, [x], [unused], "")
        observer.add("log", {}, [hidden], [y], "")
    observer.add("Recurrent", {}, [x], [y], "", parts)
    (operation,) = observer.finish(y)["operations"]
    assert operation["name"] == "Recurrent"
    assert [part["name"] for part in operation["parts"]] == ["exp", "log"]


def test_many_parts_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_observer, "MOST_PARTS", 2)
    observer = OperationObserver(measure, [])
    tensors = [to_tensor([number]) for number in range(4)]
    with observer.collect_parts() as parts:
        for received, returned in itertools.pairwise(tensors):
            observer.add("exp", {}, [received], [returned], "")
    observer.add("Recurrent", {}, tensors[:1], tensors[-1:], "", parts)
    trace = observer.finish(tensors[-1])
    assert trace["complete"]
    assert "parts" not in trace["operations"][0]
