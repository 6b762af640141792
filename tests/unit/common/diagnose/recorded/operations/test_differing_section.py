"""Tests of the operations between equal tensors and a tensor that differs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.operations.differing_section import DifferingSection, find_section
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import TensorMatches
from common.recording.index_notation import write_index
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor, to_tensor

STREAM = np.random.default_rng(0)
LOG_PROBABILITIES, RETURNS, ENTROPIES = STREAM.normal(size=(3, 16))


def _multiply_mean(script: Script, x: Tensor, returns: Tensor) -> Tensor:
    return script.call("neg", np.negative, script.call("mean", np.mean, script.call("mul", np.multiply, x, returns)))


def _policy(finish: Callable[[Script, Tensor, Tensor], Tensor]) -> OperationTrace:
    """Return the operations of a loss. finish: computes it from the policy's loss and the entropies."""
    script = Script(x=LOG_PROBABILITIES, returns=RETURNS, entropies=ENTROPIES)
    x, returns, entropies = script.inputs.values()
    return script.finish(finish(script, _multiply_mean(script, x, returns), entropies))


def _with_entropy(script: Script, loss: Tensor, entropies: Tensor, name: str = "sub", weight: float = 0.01) -> Tensor:
    mean = script.call("mean", np.mean, entropies)
    bonus = script.call("mul", np.multiply, mean, to_tensor(weight))
    return script.call(name, {"sub": np.subtract, "add": np.add}[name], loss, bonus)


def _without_entropy(script: Script, loss: Tensor, entropies: Tensor) -> Tensor:
    return loss


def _find(a: OperationTrace, b: OperationTrace) -> DifferingSection | None:
    assert a["loss"] is not None
    assert b["loss"] is not None
    return find_section(a, b, (a["loss"], b["loss"]), TensorMatches(a["tensors"], b["tensors"], 1e-5))


def _list_names(section: DifferingSection | None) -> tuple[list[str], list[str]]:
    assert section is not None
    a, b = ([operation["name"] for operation in side.operations] for side in (section.a, section.b))
    return a, b


def test_missing_and_additional_term() -> None:
    reference, other = _policy(_with_entropy), _policy(_without_entropy)
    assert _list_names(_find(reference, other)) == (["mean", "mul", "sub"], [])
    assert _list_names(_find(other, reference)) == ([], ["mean", "mul", "sub"])


def test_sign_and_weight_of_a_term() -> None:
    reference = _policy(_with_entropy)
    section = _find(reference, _policy(partial(_with_entropy, name="add")))
    assert _list_names(section) == (["sub"], ["add"])
    section = _find(reference, _policy(partial(_with_entropy, weight=0.1)))
    assert _list_names(section) == (["mul", "sub"], ["mul", "sub"])
    assert section is not None
    assert section.first is not None
    assert [operation["name"] for operation in section.first] == ["mul", "mul"]
    assert [*map(section.a.list_numbers, section.first[:1]), *map(section.b.list_numbers, section.first[1:])] == [
        [0.01],
        [0.1],
    ]


def _reduce(reduction: str, function: Callable[..., object], is_late: bool) -> OperationTrace:
    """Return the operations of a loss that is reduced before or after its sign changes."""
    script = Script(x=LOG_PROBABILITIES, returns=RETURNS)
    product = script.call("mul", np.multiply, *script.inputs.values())
    if is_late:
        return script.finish(script.call(reduction, function, script.call("neg", np.negative, product)))
    return script.finish(script.call("neg", np.negative, script.call(reduction, function, product)))


@pytest.mark.parametrize("is_late", [False, True])
def test_other_order_of_equal_code_is_no_difference(is_late: bool) -> None:
    assert _find(_reduce("mean", np.mean, is_late=False), _reduce("mean", np.mean, is_late)) is None


def test_other_reduction() -> None:
    section = _find(_reduce("mean", np.mean, is_late=False), _reduce("sum", np.sum, is_late=False))
    assert _list_names(section) == (["mean", "neg"], ["sum", "neg"])
    assert section is not None
    assert section.first is not None
    assert [operation["name"] for operation in section.first] == ["mean", "sum"]


def test_other_layout_and_another_axis() -> None:
    """B has the channels first; the softmax of the third script is computed over the examples."""

    def compute(logits: np.ndarray, channel_axis: int, softmax_axis: int) -> OperationTrace:
        def softmax(x: np.ndarray, dim: int) -> np.ndarray:
            powers = np.exp(x)
            return np.asarray(powers / powers.sum(dim, keepdims=True))

        script = Script(images=np.moveaxis(logits, 1, channel_axis))
        probabilities = script.call("softmax", softmax, script.inputs["images"], dim=softmax_axis)
        return script.finish(script.call("amax", lambda x: x.max(softmax_axis).mean(), probabilities))

    logits = STREAM.normal(size=(4, 3, 5))
    reference = compute(logits, channel_axis=-1, softmax_axis=-1)
    assert _find(reference, compute(logits, channel_axis=1, softmax_axis=1)) is None
    section = _find(reference, compute(logits, channel_axis=1, softmax_axis=0))
    assert section is not None
    assert section.first is not None
    assert [operation["arguments"] for operation in section.first] == [{"dim": -1}, {"dim": 0}]


def test_operation_with_equal_tensors_comes_before_other_code() -> None:
    """The scripts select the actions' values with other functions, and one centers the advantages of all examples."""
    advantages, actions = STREAM.normal(size=(8, 4)), STREAM.integers(4, size=8)

    def compute(axis: int | None, is_one_hot: bool) -> OperationTrace:
        script = Script(advantages=advantages, actions=actions)
        x, chosen = script.inputs.values()
        mean = script.call("Mean" if is_one_hot else "mean", np.mean, x, axis=axis, keepdims=True)
        values = script.call("Sub" if is_one_hot else "sub", np.subtract, x, mean)
        if is_one_hot:
            one_hot = script.call("OneHot", lambda index: np.eye(4)[index.astype(int)], chosen)
            product = script.call("Mul", np.multiply, values, one_hot)
            return script.finish(script.call("Sum", lambda x: (x.sum(1) ** 2).sum(), product))
        gathered = script.call("gather", lambda x, index: x[np.arange(8), index.astype(int)], values, chosen)
        return script.finish(script.call("sum", lambda x: (x**2).sum(), gathered))

    assert _find(compute(1, is_one_hot=True), compute(1, is_one_hot=False)) is None
    section = _find(compute(1, is_one_hot=True), compute(None, is_one_hot=False))
    assert section is not None
    assert section.first is not None
    assert [operation["name"] for operation in section.first] == ["Mean", "mean"]
    # A mean of all examples may also be that of a script that computes it in several steps
    assert (section.has_same_operation, section.has_equal_sizes) == (True, False)


def test_names_of_both_frameworks_are_aligned() -> None:
    """The softmax has another scale in B, whose products have other names than A's."""
    query, key, value = STREAM.normal(size=(3, 6, 6))

    def compute(names: Sequence[str], scale: float | None) -> OperationTrace:
        script = Script(query=query, key=key, value=value)
        x, y, z = script.inputs.values()
        scores = script.call(names[0], np.matmul, x, y)
        scaled = scores if scale is None else script.call("Mul", np.multiply, scores, to_tensor(scale))
        return script.finish(script.call(names[1], lambda p, v: (np.tanh(p) @ v).sum(), scaled, z))

    section = _find(compute(["BatchMatMulV2", "Einsum"], 0.5), compute(["bmm", "matmul"], None))
    assert section is not None
    assert [operation["name"] for part in section.list_unaligned() for operation in part] == ["Mul"]


def _select(index: Any) -> OperationTrace:
    """Return the operations of a loss of a part of an array, which the script has joined from this part and another."""
    script = Script(first=RETURNS[:8], last=RETURNS[8:])
    x = script.call("cat", lambda *parts: np.concatenate(parts), *script.inputs.values())
    part = script.call("getitem", lambda x, **_: x[index], x, index=write_index(index))
    return script.finish(script.call("mean", np.mean, script.call("square", np.square, part)))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_selection_of_a_known_tensor_is_compared(is_reversed: bool) -> None:
    """The elements that only A uses are known to B, too: it has joined the array from them."""
    indices = [np.s_[4:12], np.s_[:8]] if is_reversed else [np.s_[:8], np.s_[4:12]]
    section = _find(*(_select(index) for index in indices))
    assert section is not None
    assert section.first is not None
    assert [operation["arguments"]["index"] for operation in section.first] == [write_index(x) for x in indices]
    assert section.has_same_operation
    assert section.has_other_arguments


@pytest.mark.parametrize(("shape", "may_be_labels"), [((16,), True), ((2,), False), ((), False), ((16, 3), True)])
def test_an_array_without_a_name_may_be_labels_if_it_is_as_large(shape: tuple[int, ...], may_be_labels: bool) -> None:
    """A constant of two numbers, for example, is none for 16 examples."""
    script = Script(x=LOG_PROBABILITIES)
    outputs = script.call("exp", np.exp, script.inputs["x"])
    loss = script.call("own_loss", lambda x, y: np.mean(x) * np.sum(y), outputs, to_tensor(np.ones(shape)))
    trace = script.finish(loss)
    assert trace["loss"] is not None
    assert SectionSide(trace, trace["loss"], ()).may_receive_labels(16) is may_be_labels


def test_a_target_without_operations_may_be_computed_from_labels() -> None:
    trace = Script(x=LOG_PROBABILITIES).finish(to_tensor(1.0))
    assert SectionSide(trace, 0, ()).may_receive_labels(16)


def _choose(axis: int) -> OperationTrace:
    """Return the operations that sum what one-hot codes choose. The codes depend on weights."""
    script = Script(x=np.random.default_rng(3).permuted(np.arange(25.0)).reshape(5, 5))
    weight = script.name("weight/codes", to_tensor(np.diag(np.arange(1.0, 6))))
    scores = script.call("matmul", np.matmul, script.inputs["x"], weight)
    codes = script.call("one_hot", lambda x: np.eye(5)[np.asarray(x).argmax(axis)], scores)
    chosen = script.call("mul", np.multiply, codes, script.inputs["x"])
    return script.finish(script.call("sum", np.sum, chosen))


def test_statistics_of_one_hot_codes_do_not_show_their_order() -> None:
    section = _find(_choose(0), _choose(1))
    assert section is not None
    assert [operation["name"] for operation in section.a.operations] == ["one_hot", "mul", "sum"]
