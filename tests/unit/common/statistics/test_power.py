import numpy as np
import pytest

from common.statistics.paired import check_equivalence, measure_shift
from common.statistics.power import compute_power, count_pairs_needed, find_smallest_shift

REPETITIONS = 300


def simulate(mean: float, pairs: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.normal(mean, 1, pairs) for _ in range(REPETITIONS)]


@pytest.mark.slow
def test_the_smallest_shift_is_shown_in_four_of_five_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.statistics.paired.RESAMPLES", 9)
    shown = [measure_shift(differences).p_value < 0.05 for differences in simulate(find_smallest_shift(1, 5), 5)]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.06)


@pytest.mark.slow
def test_the_seeds_needed_show_equivalence_in_four_of_five_groups() -> None:
    pairs = count_pairs_needed(0.0, 1.0, 0.5)
    assert pairs is not None
    shown = [check_equivalence(differences, 0.5) < 0.05 for differences in simulate(0.0, pairs)]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.06)


def test_more_seeds_show_smaller_shifts() -> None:
    """Cohen's tables have 34 pairs for half a deviation."""
    shifts = [find_smallest_shift(1, pairs) for pairs in (2, 3, 5, 10, 100)]
    assert shifts == sorted(shifts, reverse=True)
    assert compute_power(0.5, 1, 33) < 0.8 < compute_power(0.5, 1, 34)
    assert find_smallest_shift(1, 5, tests=4) > find_smallest_shift(1, 5)
    assert find_smallest_shift(3, 5) == pytest.approx(3 * find_smallest_shift(1, 5))


@pytest.mark.parametrize(
    ("mean", "deviation", "margin", "needed"),
    [(0.5, 1, 0.5, 34), (100, 1e-9, 0.5, 2), (0, 0, 0.5, 5), (0.4, 0, 0.1, 6), (0.01, 1, 0.001, None)],
)
def test_seeds_needed(mean: float, deviation: float, margin: float, needed: int | None) -> None:
    assert count_pairs_needed(mean, deviation, margin) == needed
