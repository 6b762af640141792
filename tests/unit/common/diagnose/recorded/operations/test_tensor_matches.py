"""Tests of tensors that have the same numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.diagnose.recorded.operations.tensor_matches import TensorMatches
from common.recording.operation_format import TensorStatistics
from tests.unit.common.recording.tensors import measure, to_tensor

UNKNOWN: TensorStatistics = {
    "shape": [3], "dtype": "float32", "sum": None, "norm": None, "minimum": None, "maximum": None,
}  # fmt: skip
ARRAYS = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4), elements=st.floats(-100, 100, width=32))


@given(ARRAYS, st.randoms(use_true_random=False))
def test_transposed_and_rounded_tensors_match(array: np.ndarray, random: object) -> None:
    axes = sorted(range(array.ndim), key=lambda _: random.random())  # type: ignore[attr-defined]
    rounded = array.astype(np.float64).transpose(axes) * (1 + 1e-7)
    matches = TensorMatches([UNKNOWN, measure(to_tensor(array))], [measure(to_tensor(rounded))], 1e-5)
    assert (matches.are_equal(1, 0), matches.matched) == (True, (frozenset({1}), frozenset({0})))


@given(ARRAYS, st.integers(min_value=0))
def test_changed_tensors_do_not_match(array: np.ndarray, position: int) -> None:
    changed = array.copy()
    changed.flat[position % array.size] += max(1.0, np.abs(array).max())
    matches = TensorMatches([measure(to_tensor(array))], [measure(to_tensor(changed)), UNKNOWN], 1e-5)
    assert matches.matched == (frozenset(), frozenset())


def test_many_equal_tensors_are_compared_once() -> None:
    zeros = measure(to_tensor([0.0, 0.0]))
    matches = TensorMatches([zeros] * 20_000, [measure(to_tensor([1.0, 2.0])), *[zeros] * 20_000], 1e-5)
    counts = []
    compare = matches._compare
    matches._compare = lambda rows, row: counts.append(len(rows)) or compare(rows, row)  # type: ignore[method-assign, func-returns-value]
    assert [len(tensors) for tensors in matches.matched] == [20_000, 20_000]
    assert sum(counts) < 10


def test_a_sum_with_a_small_term_is_matched_by_chance() -> None:
    total, with_term = (measure(to_tensor(x)) for x in (1000.0, 1000.005))
    matches = TensorMatches([total], [measure(to_tensor(1000.00001)), with_term], 1e-5)
    assert matches.are_equal(0, 1)
    assert matches.is_matched_by_chance(1, is_of_a=False)
    assert not matches.is_matched_by_chance(0, is_of_a=False)
    assert not matches.is_matched_by_chance(0, is_of_a=True)
    assert not TensorMatches([total], [with_term], 1e-5).is_matched_by_chance(0, is_of_a=False)


def test_numbers_in_another_order_match_only_if_their_order_does_not_count() -> None:
    """The layout does not count: a matrix that is transposed has its numbers in the same order along each axis."""
    array = np.random.default_rng(0).normal(size=(3, 3, 4))
    a = [measure(to_tensor(x)) for x in (array, np.sort(array, 2))]
    b = [measure(to_tensor(x)) for x in (array.transpose(2, 1, 0), array[:, ::-1], 2 * array[:, ::-1])]
    ordered, unordered = (TensorMatches(a, b, 1e-5, is_ordered=is_ordered) for is_ordered in (True, False))
    assert [[ordered.are_equal(x, y) for y in range(3)] for x in range(2)] == [[True, False, False], [False] * 3]
    assert [ordered.are_reordered(0, y) for y in range(3)] == [False, True, False]
    assert ordered.matched == (frozenset({0}), frozenset({0}))
    assert unordered.matched == (frozenset({0, 1}), frozenset({0, 1}))
    assert not unordered.are_reordered(0, 1)
    assert ordered.find_factor(0, 1) is None  # another order is no factor
    assert ordered.find_factor(0, 2) == pytest.approx(2)


def test_order_of_tensors_of_older_records_does_not_count() -> None:
    """They have no centers. Tensors that are known to be equal are equal in any order."""
    array = np.random.default_rng(0).normal(size=(3, 4))
    a, b = measure(to_tensor(array)), measure(to_tensor(array[::-1]))
    older = measure(to_tensor(array))
    del older["centers"]
    assert TensorMatches([older], [b], 1e-5, is_ordered=True).matched == (frozenset({0}), frozenset({0}))
    known = TensorMatches([a], [b], 1e-5, [(0, 0)], is_ordered=True)
    assert known.are_equal(0, 0)
    assert known.matched == (frozenset({0}), frozenset({0}))


def test_masked_tensors_match_only_if_the_numbers_that_are_not_masked_do() -> None:
    """The mask outweighs the other numbers in the sum and the norm."""
    masked = [measure(to_tensor([number, -1e30, -1e30])) for number in (0.5, 0.7)]
    matches = TensorMatches(masked, masked[:1], 1e-5)
    assert [matches.are_equal(0, 0), matches.are_equal(1, 0)] == [True, False]


@given(ARRAYS)
def test_negated_tensors_have_the_other_signs(array: np.ndarray) -> None:
    """Tensors that equal their negative, such as zeros, are not negated."""
    matches = TensorMatches([measure(to_tensor(array))], [measure(to_tensor(x)) for x in (-array, array)], 1e-5)
    assert matches.are_negated(0, 0) == (not matches.are_equal(0, 0))
    assert not matches.are_negated(0, 1)


def test_other_multiples_and_unknown_tensors_are_not_negated() -> None:
    array = np.array([1.0, 2, 5])
    b = [*(measure(to_tensor(x * array)) for x in (-2, 2, -0.5)), measure(to_tensor([-1.0, -3, -5])), UNKNOWN]
    matches = TensorMatches([measure(to_tensor(array)), UNKNOWN], b, 1e-5)
    assert not any(matches.are_negated(a, other) for a in range(2) for other in range(5))
    assert TensorMatches([measure(to_tensor(array))], [measure(to_tensor(-array))], 1e-5).are_negated(0, 0)
