"""Tests of operations after which only a part of the positions of a tensor counts."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.diagnose.recorded.operations.masked_parts import (
    MaskedPart,
    drop_masked_parts,
    find_masked_part,
    have_same_share,
)
from common.diagnose.recorded.operations.section_side import SectionSide
from common.recording.operation_format import Operation
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor, to_tensor

SCORES = np.random.default_rng(3).normal(size=(8, 3))
MASK = np.array([1.0, 0, 1, 1, 0, 1, 0, 1])
COUNTS = (5, 8)  # of ones in the mask, and of its elements
TRUE = np.flatnonzero(MASK)


def _script(mask: np.ndarray = MASK) -> Script:
    return Script(x=SCORES, mask=mask)


def _look(script: Script, result: Tensor) -> tuple[SectionSide, Operation]:
    """Return a side that ends with an operation, and the operation."""
    trace = script.finish(result)
    return SectionSide(trace, trace["loss"] or 0, ()), trace["operations"][-1]


def _find(script: Script, result: Tensor) -> MaskedPart | None:
    return find_masked_part(*_look(script, result))


def _find_counts(script: Script, result: Tensor) -> tuple[int, int] | None:
    """Return the counts of a part of the input x; None if an operation takes no part."""
    side, operation = _look(script, result)
    part = find_masked_part(side, operation)
    if part is None:
        return None
    assert side.list_shapes([part.tensor]) == [[*SCORES.shape]]
    assert part.operation is operation
    return part.count, part.total


def _select(name: str, script: Script, *indices: Tensor, index: str | None = None) -> Tensor:
    """Return the rows of x at which the mask is true."""
    arguments = {} if index is None else {"index": index}
    return script.call(name, lambda x, *_, **__: np.asarray(x)[TRUE], script.inputs["x"], *indices, **arguments)


def test_rows_that_a_mask_selects_are_a_part() -> None:
    script = _script()
    part = _find(script, _select("getitem", script, script.inputs["mask"], index="[bool[8]]"))
    assert part is not None
    assert ((part.count, part.total), part.share) == (COUNTS, 5 / 8)


@pytest.mark.parametrize("name", ["nonzero", "Where"])
@pytest.mark.parametrize("between", ["", "squeeze", "Cast"])
@pytest.mark.parametrize("selection", ["getitem", "GatherV2", "index_select"])
def test_rows_at_the_indices_of_a_mask_are_a_part(name: str, between: str, selection: str) -> None:
    script = _script()
    indices = script.call(name, np.flatnonzero, script.inputs["mask"])
    indices = script.call(between, np.array, indices) if between else indices
    index = "[int64[5]]" if selection == "getitem" else None
    assert _find_counts(script, _select(selection, script, indices, index=index)) == COUNTS


def test_elements_at_the_indices_of_each_axis_of_a_mask_are_a_part() -> None:
    mask = np.where(SCORES > 0, 1.0, 0.0)
    script = _script(mask)
    indices = script.call_all("nonzero", np.nonzero, script.inputs["mask"])
    selected = script.call(
        "getitem", lambda x, *y, index: np.asarray(x)[y], script.inputs["x"], *indices, index="[int64[9], int64[9]]"
    )
    assert _find_counts(script, selected) == (int(mask.sum()), 24)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_product_with_a_mask_is_a_part(is_reversed: bool) -> None:
    script = _script(MASK[:, None])
    factors = [*script.inputs.values()]
    product = script.call("Mul", np.multiply, *(factors[::-1] if is_reversed else factors))
    assert _find_counts(script, product) == COUNTS


@pytest.mark.parametrize(
    "factor",
    [np.ones((8, 1)), np.zeros((8, 1)), np.linspace(0, 1, 8)[:, None], 2 * MASK[:, None], -MASK[:, None]],
    ids=["ones", "zeros", "fractions", "doubled", "negative"],
)
def test_a_product_with_other_numbers_is_no_part(factor: np.ndarray) -> None:
    script = _script(factor)
    assert _find(script, script.call("mul", np.multiply, *script.inputs.values())) is None


def test_a_product_of_two_masks_is_no_part() -> None:
    script = Script(x=MASK, mask=MASK[::-1])
    assert _find(script, script.call("mul", np.multiply, *script.inputs.values())) is None


def test_a_product_with_infinite_numbers_is_no_part() -> None:
    script = _script(np.full((8, 1), -np.inf))
    assert _find(script, script.call("mul", np.multiply, *script.inputs.values())) is None


def test_other_operations_of_a_mask_take_no_part() -> None:
    script = _script(MASK[:, None])
    assert _find(script, script.call("add", np.add, *script.inputs.values())) is None


def test_a_product_with_a_number_of_the_code_is_no_part() -> None:
    script = _script()
    assert _find(script, script.call("mul", np.multiply, script.inputs["x"], to_tensor(1.0))) is None


def test_an_operation_without_results_takes_no_part() -> None:
    script = _script(MASK[:, None])
    side, operation = _look(script, script.call("mul", np.multiply, *script.inputs.values()))
    assert find_masked_part(side, {**operation, "outputs": []}) is None


def test_results_of_functions_are_no_masks() -> None:
    """The weights of an attention may be zeros and ones."""
    for name, is_part in (("softmax", False), ("cast", True)):
        script = _script(MASK[:, None])
        weights = script.call(name, np.array, script.inputs["mask"])
        product = script.call("mul", np.multiply, script.inputs["x"], weights)
        assert (_find(script, product) is not None) == is_part


def test_numbers_that_are_computed_from_weights_are_no_masks() -> None:
    for name, is_part in (("weight/mask", False), ("label/mask", True)):
        script = Script(x=SCORES)
        weight = script.name(name, to_tensor(MASK[:, None]))
        gate = script.call("round", np.round, weight)
        assert (_find(script, script.call("mul", np.multiply, script.inputs["x"], gate)) is not None) == is_part


Indices = Callable[[Script], list[Tensor]]


@pytest.mark.parametrize(
    "list_indices",
    [
        lambda script: [to_tensor(TRUE)],
        lambda script: [script.call("topk", lambda x: TRUE, script.inputs["mask"])],
        lambda script: [script.call("nonzero", np.flatnonzero, script.inputs[x]) for x in ("mask", "x")],
        lambda script: [script.call("where", lambda *_: TRUE, script.inputs["mask"], script.inputs["x"])],
        lambda script: [
            script.call(
                "squeeze", lambda x, _: np.asarray(x), script.call("nonzero", np.flatnonzero, script.inputs["mask"]),
                script.inputs["x"],
            )
        ],
    ],
    ids=["recorded", "others", "of two masks", "choice", "of two tensors"],
)  # fmt: skip
def test_rows_at_other_indices_are_no_part(list_indices: Indices) -> None:
    script = _script()
    assert _find(script, _select("gather", script, *list_indices(script))) is None


def test_a_mask_without_rows_takes_no_part() -> None:
    script = _script()
    side, operation = _look(script, _select("getitem", script, script.inputs["mask"], index="[bool[0]]"))
    side.get_statistics(operation["inputs"][1])["shape"] = [0]
    assert find_masked_part(side, operation) is None


def test_parts_and_numbers_of_rows_are_dropped_if_other_operations_remain() -> None:
    script = _script(MASK[:, None])
    script.call("arange", lambda: np.arange(8))
    masked = script.call("mul", np.multiply, *script.inputs.values())
    side, _ = _look(script, script.call("square", np.square, masked))
    operations = side.list_leading_to(side.target)
    assert [x["name"] for x in drop_masked_parts(side, operations)] == ["square"]
    assert [x["name"] for x in drop_masked_parts(side, operations[:1])] == ["mul"]
    assert drop_masked_parts(side, []) == []


def test_operations_that_only_number_rows_are_dropped() -> None:
    script = Script(x=SCORES)
    rows = script.call("arange", lambda: np.arange(8.0)[:, None])
    side, _ = _look(script, script.call("add", np.add, script.inputs["x"], rows))
    operations = side.list_leading_to(side.target)
    assert [x["name"] for x in operations] == ["arange", "add"]
    assert [x["name"] for x in drop_masked_parts(side, operations)] == ["add"]
    assert [x["name"] for x in drop_masked_parts(side, operations[:1])] == ["arange"]


def test_the_share_of_no_positions_is_zero() -> None:
    _, operation = _look(script := _script(), script.call("exp", np.exp, script.inputs["x"]))
    assert MaskedPart(0, 0, 0, operation).share == 0


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 50))
def test_shares_are_equal_if_they_are_the_same_fraction(count: int, total: int, factor: int) -> None:
    assert have_same_share(count / total, count * factor / (total * factor))
    assert not have_same_share(count / total, (count + 1) / total)
    assert not have_same_share((count + 1) / total, count / total)
