"""Tests of rows that models make of their examples, in two orders."""

import numpy as np
import pytest

from common.diagnose.recorded.merged_rows import arrange_rows
from common.map.description import RecordedCall

ROWS = np.random.default_rng(1).normal(size=(4, 3, 5))  # examples, nodes, features


def _make_call(rows: np.ndarray, size: int = 2) -> RecordedCall:
    """Return the call of a layer that doubles the first features of each row."""
    received = rows.reshape(-1, 5)
    return RecordedCall(received, received[:, :size] * 2)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_rows_are_arranged_as_the_other_side_has_them(is_reversed: bool) -> None:
    calls = [_make_call(ROWS), _make_call(ROWS.swapaxes(0, 1))]
    expected, call = reversed(calls) if is_reversed else calls
    arranged = arrange_rows(expected, call, 4, np.allclose)
    assert arranged.received is not None
    assert arranged.returned is not None
    np.testing.assert_array_equal(arranged.received, call.received)
    np.testing.assert_array_equal(arranged.returned, call.returned)


@pytest.mark.parametrize(
    ("call", "count"),
    [
        (_make_call(ROWS), 4),  # the same order
        (_make_call(ROWS.swapaxes(0, 1) + 1), 4),
        (_make_call(ROWS.swapaxes(0, 1)), 5),  # no multiple of the examples
        (_make_call(ROWS.swapaxes(0, 1)), 12),  # a row is an example
        (RecordedCall(None, None), 4),
    ],
)
def test_other_calls_stay_as_they_are(call: RecordedCall, count: int) -> None:
    expected = _make_call(ROWS)
    assert arrange_rows(expected, call, count, np.allclose) is expected
