"""Tests of labels that a script computes from other arrays."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.example_order import ArrayPair
from common.diagnose.recorded.losses.computed_labels import is_computed
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.traces import Script

TARGETS, OTHERS = np.random.default_rng(0).normal(size=(2, 8))


def _record(is_result: bool) -> OperationTrace:
    """Return the operations of a script whose label is the result of an operation, or an array of its batch."""
    script = Script(x=TARGETS)
    label = script.call("mul", np.multiply, script.inputs["x"], script.inputs["x"]) if is_result else script.inputs["x"]
    script.name("batch/0/label/target", label)
    return script.finish(script.call("sum", np.sum, label))


def _make_side(trace: OperationTrace | None, loss: object = None, keys: dict[str, str] | None = None) -> Any:
    record = SimpleNamespace(ranks=[SimpleNamespace(operations=trace)], facts={"loss": loss}, steps=[1])
    facts = {} if keys is None else {"keys": keys}
    batches = SimpleNamespace(read_step=lambda step, kind: {})
    return SimpleNamespace(record=record, get_facts=lambda step: facts, batches=batches)


@pytest.mark.parametrize(
    ("a", "b", "label_of_b", "expected"),
    [
        (False, True, OTHERS, True),
        (True, False, OTHERS, True),
        (False, True, np.ones((8, 8)), True),  # a mask of another shape
        (False, False, OTHERS, False),
        (False, True, 255 * TARGETS, False),  # a known mistake of the preparation
        (False, True, -TARGETS, True),
        (None, False, OTHERS, False),
    ],
)
def test_computed_label_is_no_data(a: bool | None, b: bool, label_of_b: np.ndarray, expected: bool) -> None:
    sides = {"a": _make_side(None if a is None else _record(a)), "b": _make_side(_record(b))}
    pair = SimpleNamespace(**sides, has_followed=True)
    label = ArrayPair("target", TARGETS, label_of_b, is_label=True, name_b="target")
    assert is_computed(pair, label, 1) == expected  # type: ignore[arg-type]


def test_label_in_another_shape_is_data() -> None:
    script = Script(x=TARGETS)
    label = script.call("Cast", np.copy, script.call("reshape", np.ravel, script.inputs["x"]))
    script.name("batch/0/label/target", label)
    a = _make_side(script.finish(script.call("sum", np.sum, label)))
    pair: Any = SimpleNamespace(a=a, b=_make_side(None), has_followed=True)
    assert not is_computed(pair, ArrayPair("target", TARGETS, OTHERS, is_label=True, name_b="target"), 1)


def test_labels_of_two_values_are_data() -> None:
    pair = SimpleNamespace(a=_make_side(_record(is_result=True)), b=_make_side(_record(is_result=True)))
    label = ArrayPair("target", np.arange(8) % 2.0, np.arange(8) % 2 * 0.9, is_label=True, name_b="target")
    assert not is_computed(pair, label, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("has_followed", [False, True])
@pytest.mark.parametrize("losses", [({}, None), (None, {}), ({}, {}), (None, None)])
def test_a_label_of_the_only_seen_loss_may_be_computed(losses: tuple[object, object], has_followed: bool) -> None:
    """The other side has an array of its batch in its place, such as the rewards of an agent."""
    a, b = (_make_side(_record(is_result=False), loss) for loss in losses)
    label = ArrayPair("target", TARGETS, OTHERS, is_label=True, name_b="target")
    pair: Any = SimpleNamespace(a=a, b=b, has_followed=has_followed)
    assert is_computed(pair, label, 1) == (has_followed and (losses[0] is None) != (losses[1] is None))


@pytest.mark.parametrize("of_batch", ["", "a", "b"])
def test_labels_that_both_scripts_make_are_no_data(of_batch: str) -> None:
    """One script counts the positions of the positive pairs, and the other one puts them first, at position 0."""
    keys = {name: {"input/0": "0"} | ({"label/target": "1"} if name == of_batch else {}) for name in "ab"}
    pair = SimpleNamespace(a=_make_side(None, keys=keys["a"]), b=_make_side(None, keys=keys["b"]), has_followed=True)
    label = ArrayPair("target", np.arange(8), np.zeros(8, int), is_label=True, name_b="target")
    assert is_computed(pair, label, 1) == (not of_batch)  # type: ignore[arg-type]


def test_labels_that_only_one_script_shifts_are_data() -> None:
    """Both scripts cut them from the ids of their batches."""
    pair = SimpleNamespace(**{x: _make_side(None, keys={"input/0": "0"}) for x in "ab"}, has_followed=True)
    label = ArrayPair("target", np.arange(8), np.arange(8) + 1, is_label=True, name_b="target")
    assert not is_computed(pair, label, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("has_array", [True, False])
def test_an_array_that_the_other_script_has_elsewhere_is_no_counterpart_of_its_computed_label(has_array: bool) -> None:
    """A computes advantages from rewards, and B's recorder takes the rewards for labels."""
    rewards = np.arange(8.0)
    side_a, side_b = _make_side(None, keys={"input/0": "states"}), _make_side(None)
    others = {"rewards": rewards[::-1] if has_array else OTHERS}
    side_a.batches.read_step = lambda step, kind: others if kind == "other" else {}
    pair = SimpleNamespace(a=side_a, b=side_b, has_followed=True)
    label = ArrayPair("operand_1", TARGETS, rewards, is_label=True, name_b="rewards")
    assert is_computed(pair, label, 1) == has_array  # type: ignore[arg-type]


def test_labels_that_one_script_transposes_are_data_though_it_computes_them() -> None:
    labels = np.arange(12).reshape(3, 4)
    pair: Any = SimpleNamespace(a=_make_side(_record(is_result=False)), b=_make_side(_record(is_result=True)))
    transposed = ArrayPair("target", labels, labels.T.reshape(3, 4), is_label=True, name_b="target")
    assert not is_computed(pair, transposed, 1)
    assert is_computed(pair, ArrayPair("target", labels, labels[:, ::-1] ** 2, is_label=True, name_b="target"), 1)


@pytest.mark.parametrize(("step", "expected"), [(1, False), (2, True)])
def test_the_arrays_of_the_step_show_what_a_script_computes_a_label_from(step: int, expected: bool) -> None:
    rewards = np.arange(8.0)
    side_a, side_b = _make_side(None, keys={"input/0": "states"}), _make_side(None)
    by_step = {1: {"rewards": OTHERS}, 2: {"rewards": rewards[::-1]}}
    side_a.batches.read_step = lambda number, kind: by_step[number] if kind == "other" else {}
    pair: Any = SimpleNamespace(a=side_a, b=side_b, has_followed=True)
    label = ArrayPair("operand_1", TARGETS, rewards, is_label=True, name_b="rewards")
    assert is_computed(pair, label, step) == expected


def test_labels_that_one_script_numbers_otherwise_are_data_though_it_makes_them() -> None:
    """The made labels are in the other script's batch, in another order."""
    side_a, side_b = _make_side(None, keys={"input/0": "0"}), _make_side(None, keys={"input/0": "0"})
    side_a.batches.read_step = lambda step, kind: {"numbers": np.arange(8)[::-1] + 1} if kind == "other" else {}
    pair: Any = SimpleNamespace(a=side_a, b=side_b, has_followed=True)
    label = ArrayPair("target", np.arange(8), np.arange(8) + 1, is_label=True, name_b="target")
    assert not is_computed(pair, label, 1)
