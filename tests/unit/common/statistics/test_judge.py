"""Verdicts on simulated groups, whose truth is known."""

from collections import Counter

import numpy as np
import pytest

from common.statistics.judge import Judgement, Values, choose_margin, judge
from common.statistics.verdicts import CURVE, DIFFERENT, EQUIVALENT, UNDECIDED

POINTS = 20


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bootstrap and the power decide no verdict."""
    monkeypatch.setattr("common.statistics.paired.RESAMPLES", 9)
    monkeypatch.setattr("common.statistics.judge.find_smallest_shift", lambda *arguments: 1.0)
    monkeypatch.setattr("common.statistics.judge.count_pairs_needed", lambda *arguments: 2)


def simulate(generator: np.random.Generator, seeds: int, shift: float = 0.0, noise: float = 1.0) -> Judgement:
    """Judge groups whose pairs differ by noise that is correlated along the curve, and by a shift."""
    common = generator.normal(size=(seeds, 1))
    curves = [
        common + noise * (generator.normal(size=(seeds, 1)) + generator.normal(size=(seeds, POINTS)).cumsum(1) / 5)
        for _ in range(2)
    ]
    curves[1] += shift
    accuracy = Values(generator.normal(size=seeds), noise * generator.normal(size=seeds))
    values = {"accuracy": accuracy} if noise == 1 else {}
    named = {CURVE: Values(curves[0].mean(1), curves[1].mean(1)), **values}
    return judge(values, (curves[0], curves[1]), {name: choose_margin(pair) for name, pair in named.items()})


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_equal_groups_are_rarely_called_different(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    verdicts = Counter(simulate(generator, seeds).verdict for _ in range(150))
    assert verdicts[DIFFERENT] <= 150 * 0.08, "5 %, and chance"


def test_close_pairs_are_equivalent_and_a_shift_is_found() -> None:
    generator = np.random.default_rng(0)
    assert simulate(generator, 5, noise=0.01).verdict == EQUIVALENT
    assert simulate(generator, 5, shift=1.0, noise=0.01).verdict == DIFFERENT
    assert simulate(generator, 3).verdict == UNDECIDED


def test_a_shift_below_the_margin_is_equivalent_and_still_shown() -> None:
    judgement = simulate(np.random.default_rng(0), 8, shift=0.05, noise=0.01)
    assert judgement.verdict == EQUIVALENT and judgement.metrics[CURVE].has_shift
    assert judgement.residuals is not None and judgement.residuals.are_shown_one_sided


def test_one_sided_residuals_are_seen_where_a_noisy_start_hides_the_mean() -> None:
    generator = np.random.default_rng(0)
    reference = generator.normal(size=(8, POINTS))
    residuals = 0.01 + 0.005 * generator.normal(size=(8, POINTS))
    residuals[:, 0] = 10 * generator.normal(size=8)
    judgement = judge({}, (reference, reference + residuals), {CURVE: 0.001})
    assert judgement.residuals is not None and judgement.residuals.p_value < 0.01 < judgement.residuals.share_above
    assert not judgement.metrics[CURVE].has_shift and judgement.verdict == DIFFERENT


@pytest.mark.slow
def test_the_level_holds_although_points_of_a_curve_are_not_independent() -> None:
    """Each pair is shifted as a whole. If points counted as independent, nearly every group would be different."""
    generator = np.random.default_rng(0)
    shown = 0
    for _ in range(150):
        reference = np.zeros((5, POINTS))
        judgement = judge({}, (reference, reference + generator.normal(size=(5, 1))), {CURVE: 0.1})
        assert judgement.residuals is not None
        shown += judgement.residuals.are_shown_one_sided
    assert shown <= 150 * 0.08


@pytest.mark.parametrize(
    ("reference", "contestant", "verdict"), [(3, 3, UNDECIDED), (None, 3, DIFFERENT), (3, None, DIFFERENT)]
)
def test_a_seed_that_diverged_is_not_dropped(reference: int | None, contestant: int | None, verdict: str) -> None:
    curves = np.ones((2, 5, POINTS)) + 1e-6 * np.random.default_rng(0).normal(size=(2, 5, POINTS))
    for curve, seed in zip(curves, (reference, contestant), strict=True):
        if seed is not None:
            curve[seed] = np.nan
    judgement = judge({}, (curves[0], curves[1]), {CURVE: 0.1})
    assert judgement.verdict == verdict and judgement.metrics[CURVE].not_finite == [3]
    assert judgement.residuals is None and judgement.metrics[CURVE].shift is None


def test_several_metrics_are_corrected_for() -> None:
    """A shift that one test shows is not shown if it is the smallest of many."""
    generator = np.random.default_rng(1)
    differences = np.array([0.9, 1.6, 0.7, 1.5, 2.0])
    flat = (np.zeros((5, POINTS)), np.zeros((5, POINTS)))
    alone = {"shifted": Values(np.zeros(5), differences)}
    others = {f"noise{index}": Values(np.zeros(5), generator.normal(size=5)) for index in range(8)}
    margins = dict.fromkeys([CURVE, *alone, *others], 0.1)
    assert judge(alone, flat, margins).metrics["shifted"].verdict == DIFFERENT
    assert judge(alone | others, flat, margins).metrics["shifted"].verdict == UNDECIDED


def test_rounding_is_no_shift_of_metrics_and_of_residuals() -> None:
    """Equal differences of an accuracy and of curves are not certain because the last digits vary."""
    reference = np.array([0.9, 0.8, 0.5])
    curves = np.repeat(reference[:, None], POINTS, axis=1)
    margins = {CURVE: 0.01, "accuracy": 0.01}
    judgement = judge({"accuracy": Values(reference, reference - 0.1)}, (curves, curves - 0.1), margins)
    assert judgement.verdict == UNDECIDED and judgement.residuals is not None
    assert judgement.residuals.p_value == judgement.metrics["accuracy"].p_different == 0.25
    seeds = np.linspace(0.1, 0.9, 8)
    curves = np.repeat(seeds[:, None], POINTS, axis=1)
    judgement = judge({}, (curves, curves * (1 + 2e-16)), {CURVE: 0.0})
    assert judgement.verdict == EQUIVALENT and judgement.residuals is not None and judgement.residuals.p_value == 1
