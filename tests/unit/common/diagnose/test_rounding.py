"""What rounding explains, and in which precision arrays are."""

import numpy as np
import pytest

from common.diagnose.findings import Check, Stage
from common.diagnose.rounding import FLOORS, MARGINS, close, disturbed, narrowest, noise, precision_of, tolerance

NUMBERS = np.random.default_rng(0).standard_normal((5, 7))
SINGLES = NUMBERS.astype(np.float32)
HALVES = SINGLES.astype(np.float16).astype(np.float32)
BRAINS = (SINGLES.view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize(
    ("array", "name"),
    [(NUMBERS, "float64"), (SINGLES, "float32"), (HALVES, "float16"), (BRAINS, "bfloat16"), (SINGLES * 1e9, "float32")],
)
def test_the_narrowest_type_is_found_by_the_values(array: np.ndarray, name: str) -> None:
    assert narrowest(array) == name
    with_nan = array.copy()
    with_nan[0, 0] = np.nan
    assert narrowest(with_nan) == name


def test_arrays_are_compared_in_the_precision_of_the_one_with_more_digits() -> None:
    assert precision_of(BRAINS, BRAINS) == "bfloat16"
    assert precision_of(BRAINS, SINGLES) == precision_of(SINGLES, HALVES) == "float32"
    assert precision_of(SINGLES, NUMBERS) == "float64"


def test_a_candidate_has_the_digits_of_what_was_seen() -> None:
    assert close(SINGLES, NUMBERS) and not close(SINGLES * (1 + 1e-4), NUMBERS)
    assert close(BRAINS, SINGLES) and not close(BRAINS * 1.1, SINGLES)
    assert close(NUMBERS, NUMBERS * (1 + 1e-12)) and not close(NUMBERS, NUMBERS * (1 + 1e-7))
    assert not close(SINGLES, NUMBERS, 1e-9)


@pytest.mark.parametrize("precision", FLOORS)
def test_the_tolerance_is_the_floor_or_a_multiple_of_the_noise(precision: str) -> None:
    assert tolerance(0.0, precision) == FLOORS[precision]
    assert tolerance(1.0, precision) == MARGINS[precision]
    assert not Check("x", FLOORS[precision] / 2, precision=precision).differs
    assert Check("x", FLOORS[precision] * 2, precision=precision).differs


def test_noise_is_what_a_unit_in_the_last_place_changes() -> None:
    moved = disturbed(SINGLES, 2.0**-23)
    assert moved.dtype == np.float32 and (moved != SINGLES).all()
    assert 2.0**-24 < noise(SINGLES, moved) < 2.0**-22
    assert noise(SINGLES, None, 3.0) == 3.0
    assert noise(SINGLES, np.full_like(SINGLES, np.nan)) == 0.0, "an overflow says nothing of rounding"


def test_nan_in_both_is_no_difference() -> None:
    a, b = np.array([1.0, np.nan, np.inf]), np.array([1.0, np.nan, np.inf])
    stage = Stage("activations")
    assert not stage.compare("x", a, b).differs
    assert stage.compare("x", a, np.array([1.0, 2.0, np.inf])).differs
    assert stage.compare("x", a, np.array([1.0, np.nan, 2.0])).differs


def test_what_is_nothing_but_rounding_is_said() -> None:
    stage = Stage(
        "gradients", [Check("key.bias", 0.5, 0.3, precision="bfloat16"), Check("w", 0.0)], precision="bfloat16"
    )
    assert stage.verdict == "equal"
    assert stage.lost == "not compared in bfloat16, in which they are little but rounding: key.bias"
    assert Stage("gradients", [Check("w", 0.0)]).lost == ""
