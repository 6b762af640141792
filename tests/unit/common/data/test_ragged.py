"""Widths, places and masks of sequences of different lengths."""

import numpy as np
import pytest

from common.data.ragged import build_mask, compute_padded_width, locate_values


@pytest.mark.parametrize(("lengths", "width"), [([0], 8), ([0, 0], 8), ([1], 8), ([8], 8), ([9, 3], 16), ([16], 16)])
def test_width(lengths: list[int], width: int) -> None:
    assert compute_padded_width(np.array(lengths)) == width


def test_places() -> None:
    rows, positions = locate_values(np.array([2, 0, 3]))
    assert rows.tolist() == [0, 0, 2, 2, 2]
    assert positions.tolist() == [0, 1, 0, 1, 2]


def test_mask() -> None:
    mask = build_mask(np.array([2, 0, 3]), 3)
    assert (mask.dtype, mask.tolist()) == (np.int32, [[1, 1, 0], [0, 0, 0], [1, 1, 1]])
