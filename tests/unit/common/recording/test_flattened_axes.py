"""Tests of the axes that a reshape merges."""

import pytest

from common.recording.flattened_axes import find_flattened


@pytest.mark.parametrize(
    ("before", "after", "axis", "merged"),
    [
        ((2, 3, 4, 5), (2, 60), -1, (3, 4, 5)),
        ((1, 3, 4), (1, 12), -1, (3, 4)),
        ((2, 1, 4, 5), (2, 20), -1, (1, 4, 5)),
        ((2, 4, 4), (2, 16), -1, (4, 4)),
        ((2, 10, 4, 6), (2, 10, 24), -1, (4, 6)),
        ((2, 4, 6, 10), (2, 24, 10), 1, (4, 6)),
        ((2, 4, 6, 10), (2, 24, 10), -1, None),
        ((2, 1, 10, 4, 6), (2, 10, 24), -1, (4, 6)),
        ((2, 10, 4, 4), (2, 10, 16), -1, None),  # of an attention whose heads have their own number of features
        ((2, 3, 4), (6, 4), -1, None),
        ((2, 24), (2, 4, 6), -1, None),
        ((2, 3, 4), (24,), -1, None),
    ],
)
def test_merged_axes(
    before: tuple[int, ...], after: tuple[int, ...], axis: int, merged: tuple[int, ...] | None
) -> None:
    assert find_flattened(before, after, axis) == merged
