"""Tests of outputs without the rows of padding, as packed sequences have them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.example_order import ArrayPair
from common.diagnose.recorded.packed_rows import arrange_packed

TOKENS = np.array([[5, 3, 0, 0], [2, 7, 4, 9], [8, 1, 6, 0]])
OUTPUTS = np.random.default_rng(0).normal(size=(3, 4, 2))
BY_EXAMPLE = ([0, 0, 1, 1, 1, 1, 2, 2, 2], [0, 1, 0, 1, 2, 3, 0, 1, 2])
PACKED = ([1, 2, 0, 1, 2, 0, 1, 2, 1], [0, 0, 0, 1, 1, 1, 2, 2, 3])  # the longest example first, step by step


def _build_side(labels: np.ndarray, count: int = 1) -> Any:
    batches = SimpleNamespace(
        list_micro_batches=lambda step: [(0, number) for number in range(count)],
        read_micro_batch=lambda step, rank, number, kind: {"labels": labels} if kind == "label" else {},
    )
    return SimpleNamespace(batches=batches)


@pytest.mark.parametrize("order", [BY_EXAMPLE, PACKED])
@pytest.mark.parametrize("is_packed_in_a", [True, False])
def test_rows_are_put_into_the_order_of_the_labels(order: tuple[list[int], list[int]], is_packed_in_a: bool) -> None:
    rows, sides = OUTPUTS[order], [_build_side(TOKENS[order]), _build_side(TOKENS)]
    arrays = (rows, OUTPUTS)
    if not is_packed_in_a:
        sides, arrays = sides[::-1], arrays[::-1]
    packed = arrange_packed(ArrayPair("0", *arrays), sides, 1)
    assert packed is not None
    np.testing.assert_array_equal(packed.a, rows)
    np.testing.assert_array_equal(packed.b, rows)


def test_other_labels_and_several_micro_batches_show_no_order() -> None:
    array = ArrayPair("0", OUTPUTS[PACKED], OUTPUTS)
    assert arrange_packed(array, [_build_side(TOKENS[PACKED] + 1), _build_side(TOKENS)], 1) is None
    assert arrange_packed(array, [_build_side(TOKENS[PACKED], 2), _build_side(TOKENS, 2)], 1) is None
    assert arrange_packed(ArrayPair("0", OUTPUTS, OUTPUTS), [_build_side(TOKENS), _build_side(TOKENS)], 1) is None
