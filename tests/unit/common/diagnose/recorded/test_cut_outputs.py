"""Tests of outputs that one script cuts along an axis."""

import numpy as np
import pytest

from common.diagnose.recorded.cut_outputs import cut_outputs
from common.diagnose.recorded.example_order import ArrayPair

FULL = np.random.default_rng(0).normal(size=(3, 5, 2))
ZEROS = np.zeros((3, 1, 2))


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize(
    ("longer", "shorter", "kept"),
    [
        (FULL, FULL[:, 1:], FULL[:, 1:]),
        (FULL, FULL[:, :-2], FULL[:, :-2]),
        (FULL, FULL[..., 1:], FULL[..., 1:]),
        (np.concatenate([ZEROS, FULL], 1), FULL + 1, FULL),
        (np.concatenate([FULL, ZEROS], 1), FULL[:2] + 1, FULL),
    ],
    ids=["first steps", "last steps", "features", "zeros first", "zeros last"],
)
def test_the_longer_output_is_cut_where_the_other_script_cuts(
    longer: np.ndarray, shorter: np.ndarray, kept: np.ndarray, is_swapped: bool
) -> None:
    arrays = (shorter, longer) if is_swapped else (longer, shorter)
    cut = cut_outputs(ArrayPair("0", *arrays))
    np.testing.assert_array_equal(cut.b if is_swapped else cut.a, kept)
    assert (cut.a if is_swapped else cut.b) is shorter


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (FULL, FULL + 1),
        (FULL, FULL[:, 1:] + 1),
        (FULL, FULL[:, 1:, 1:]),
        (FULL, FULL[:, 0]),
        (np.ones((3, 5), int), np.ones((3, 4), int)),
    ],
    ids=["one size", "other numbers", "two axes", "fewer axes", "integers"],
)
def test_other_outputs_stay(a: np.ndarray, b: np.ndarray) -> None:
    outputs = ArrayPair("0", a, b)
    assert cut_outputs(outputs) is outputs
