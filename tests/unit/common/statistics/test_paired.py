import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from common.statistics.paired import check_equivalence, correct_p_values, measure_shift

DIFFERENCES = st.lists(st.floats(-100, 100).map(lambda value: round(value, 3)), min_size=2, max_size=12)
FEW = settings(max_examples=40, deadline=None)


@pytest.mark.slow
@FEW
@given(DIFFERENCES)
def test_swapping_the_groups_flips_the_signs(values: list[float]) -> None:
    differences = np.array(values)
    shift, swapped = measure_shift(differences), measure_shift(-differences)
    assert swapped.mean == -shift.mean and swapped.p_value == pytest.approx(shift.p_value)
    assert swapped.t_interval == pytest.approx([-bound for bound in shift.t_interval[::-1]])
    assert check_equivalence(differences, 1.0) == pytest.approx(check_equivalence(-differences, 1.0))


@pytest.mark.slow
@FEW
@given(DIFFERENCES, st.sampled_from([1e-6, 0.5, 1e6]))
def test_another_unit_changes_no_p_value(values: list[float], scale: float) -> None:
    differences = np.array(values)
    shift, scaled = measure_shift(differences), measure_shift(scale * differences)
    assert scaled.p_value == pytest.approx(shift.p_value)
    assert scaled.bootstrap_interval == pytest.approx([scale * bound for bound in shift.bootstrap_interval])
    assert check_equivalence(scale * differences, scale) == pytest.approx(check_equivalence(differences, 1.0))


def test_a_shift_that_is_known() -> None:
    """The figures are those of Student (1908): the additional sleep of ten patients."""
    sleep = np.array([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    shift = measure_shift(sleep)
    assert shift.mean == pytest.approx(1.58) and shift.p_value == pytest.approx(0.00283, abs=1e-5)
    assert shift.t_interval == pytest.approx([0.700, 2.460], abs=1e-3)
    assert shift.bootstrap_interval == pytest.approx([0.97, 2.3], abs=0.1)


def test_equivalence_is_an_interval_within_the_margin() -> None:
    """Two one-sided tests at 5 % are the 90 % interval."""
    differences = np.array([0.3, -0.1, 0.2, 0.4, 0.1])
    low, high = stats.t.interval(0.9, 4, differences.mean(), stats.sem(differences))
    assert check_equivalence(differences, high + 1e-6) < 0.05 < check_equivalence(differences, high - 1e-6)
    assert check_equivalence(differences - 1, -(low - 1) + 1e-6) < 0.05


@pytest.mark.parametrize(("seeds", "is_shown"), [(5, False), (6, True)])
def test_equal_differences_have_no_variance_and_need_seeds(seeds: int, is_shown: bool) -> None:
    """A t-test would call two equal steps of an accuracy certain."""
    assert (measure_shift(np.full(seeds, 0.25)).p_value < 0.05) == is_shown
    assert (check_equivalence(np.full(seeds - 1, 0.25), 0.3) < 0.05) == is_shown
    assert check_equivalence(np.full(seeds, 0.25), 0.2) == 1 == measure_shift(np.zeros(seeds)).p_value


def test_differences_that_are_equal_up_to_rounding_are_equal() -> None:
    reference, contestant = np.array([0.9, 0.8, 0.5]), np.array([0.8, 0.7, 0.4])
    differences = contestant - reference
    assert np.ptp(differences) > 0, "or the test shows nothing"
    assert measure_shift(differences, 0.9).p_value == measure_shift(np.full(3, 0.25)).p_value == 0.25
    assert check_equivalence(differences, 0.3, 0.9) == check_equivalence(np.full(3, 0.25), 0.3) == 0.125
    rounding = np.full(8, 1e-16)
    assert measure_shift(rounding, 0.9).p_value == 1 and check_equivalence(rounding, 0.0, 0.9) < 0.05
    assert measure_shift(1e-6 * differences, 1e-6).p_value == 0.25, "another unit changes nothing"


def test_corrected_p_values_are_not_smaller() -> None:
    assert correct_p_values([0.01, 0.04, 0.9]) == pytest.approx([0.03, 0.06, 0.9])
