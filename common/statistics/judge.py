"""Verdict on two groups of paired values: for each metric, for the curve, and for all of them together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from common.statistics.paired import LEVEL, ROUNDING, Shift, check_equivalence, correct_p_values, measure_shift
from common.statistics.power import count_pairs_needed, find_smallest_shift
from common.statistics.verdicts import CURVE, DIFFERENT, EQUIVALENT, UNDECIDED

RESIDUALS = "residuals"  # name of the test of one-sided residuals among the p-values
DEFAULT_MARGIN = 0.5  # number of standard deviations between the seeds of the reference


@dataclass(frozen=True)
class Values:
    """Values of a metric, one for each seed, in the same order: float64 [seeds]. Some may not be finite."""

    reference: np.ndarray
    contestant: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        """Differences of the pairs, contestant minus reference: float64 [seeds]."""
        return self.contestant - self.reference

    @property
    def scale(self) -> float:
        """The largest absolute value of all seeds."""
        return float(np.abs([self.reference, self.contestant]).max())


@dataclass(frozen=True)
class MetricResult:
    """Comparison of one metric. The fields with a default are unknown if a value of a seed is not finite."""

    verdict: str  # EQUIVALENT, DIFFERENT or UNDECIDED
    values: Values
    margin: float  # largest shift that counts as equivalent
    shift: Shift | None = None
    p_different: float | None = None  # p-value of no shift, corrected for the number of tests
    p_equivalent: float | None = None  # p-value of a shift of at least the margin
    smallest_shift: float | None = None  # smallest shift that these seeds show with a probability of 80 %
    seeds_needed: int | None = None  # number of seeds for a verdict; None if there is one, or if more than 1,000
    not_finite: list[int] = field(default_factory=list)  # positions of seeds without a finite value

    @property
    def has_shift(self) -> bool:
        """True if a shift was shown, even if it is smaller than the margin."""
        return self.p_different is not None and self.p_different <= LEVEL


@dataclass(frozen=True)
class OneSidedResiduals:
    """Test for small differences of one sign along the curve, which a tolerance for single points does not detect."""

    share_above: float  # share of all points of all seeds at which the contestant is above the reference
    p_value: float  # corrected for the number of tests

    @property
    def are_shown_one_sided(self) -> bool:
        """True if the residuals are one-sided."""
        return self.p_value <= LEVEL


@dataclass(frozen=True)
class Judgement:
    """Verdict on two groups."""

    verdict: str
    metrics: dict[str, MetricResult]  # results by the name of the metric; the mean of the curve has the name CURVE
    residuals: OneSidedResiduals | None  # None if a curve has a value that is not finite


def judge(
    metrics: Mapping[str, Values], curves: tuple[np.ndarray, np.ndarray], margins: Mapping[str, float]
) -> Judgement:
    """Compare two groups of seeds.

    Args:
        metrics: Values of each metric.
        curves: Curves of the reference and of the contestant, float64 [seeds, points].
        margins: The margin of each metric.
    """
    all_values = {CURVE: Values(*(curve.mean(axis=1) for curve in curves)), **metrics}
    shifts = {
        name: measure_shift(values.differences, values.scale)
        for name, values in all_values.items()
        if not _find_gap_positions(values)
    }
    p_values = {name: shift.p_value for name, shift in shifts.items()}
    if CURVE in shifts:
        p_values[RESIDUALS] = measure_shift(*_average_scaled_residuals(*curves)).p_value
    corrected = dict(zip(p_values, correct_p_values([*p_values.values()]) if p_values else [], strict=True))
    results = {
        name: _judge_metric(values, margins[name], shifts[name], corrected[name], len(corrected))
        if name in shifts
        else _judge_gaps(values, margins[name])
        for name, values in all_values.items()
    }
    residuals = None
    if RESIDUALS in corrected:
        share_above = 0.5 + float(np.mean(np.sign(curves[1] - curves[0]))) / 2
        residuals = OneSidedResiduals(share_above, corrected[RESIDUALS])
    if residuals is not None and residuals.are_shown_one_sided and results[CURVE].verdict == UNDECIDED:
        results[CURVE] = replace(results[CURVE], verdict=DIFFERENT, seeds_needed=None)
    return Judgement(_summarize([result.verdict for result in results.values()]), results, residuals)


def choose_margin(values: Values, deviations: float = DEFAULT_MARGIN) -> float:
    """Return a margin: a number of standard deviations between the reference's seeds that have finite values."""
    finite = values.reference[np.isfinite(values.reference)]
    return deviations * float(np.std(finite, ddof=1)) if len(finite) > 1 else 0.0


def _average_scaled_residuals(reference: np.ndarray, contestant: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the mean residual of each seed, float64 [seeds], after each point is scaled to the same size.

    Without the scaling, noisy points would hide the others. Each seed gives one number, because the points of a curve
    depend on each other, but seeds do not. Residuals that may come from rounding count as 0. The second result is the
    largest value of the curves, scaled in the same way.

    Args:
        reference: Curves, float64 [seeds, points].
        contestant: Curves, float64 [seeds, points].
    """
    largest = float(np.abs([reference, contestant]).max())
    residuals = contestant - reference
    residuals[np.abs(residuals) <= ROUNDING * largest] = 0.0
    scales = np.sqrt(np.mean(residuals**2, axis=0))
    scales[scales == 0] = 1.0
    return np.asarray(np.mean(residuals / scales, axis=1)), float(np.mean(largest / scales))


def _find_gap_positions(values: Values) -> list[int]:
    """Return the positions of the seeds without a finite value."""
    return np.flatnonzero(~np.isfinite(values.reference + values.contestant)).tolist()


def _judge_metric(values: Values, margin: float, shift: Shift, p_different: float, tests: int) -> MetricResult:
    p_equivalent = check_equivalence(values.differences, margin, values.scale)
    verdict = DIFFERENT if p_different <= LEVEL else UNDECIDED
    if p_equivalent <= LEVEL:  # even if a shift is shown, which is then smaller than the margin
        verdict = EQUIVALENT
    needed = count_pairs_needed(shift.mean, shift.deviation, margin, tests) if verdict == UNDECIDED else None
    if needed is not None:
        needed = max(needed, shift.pairs + 1)
    smallest = find_smallest_shift(shift.deviation, shift.pairs, tests)
    return MetricResult(verdict, values, margin, shift, p_different, p_equivalent, smallest, needed)


def _judge_gaps(values: Values, margin: float) -> MetricResult:
    """Judge a metric with non-finite values: different, unless both runs of each of these seeds have such a value."""
    is_different = np.isfinite(values.reference) != np.isfinite(values.contestant)
    verdict = DIFFERENT if is_different.any() else UNDECIDED
    return MetricResult(verdict, values, margin, not_finite=_find_gap_positions(values))


def _summarize(verdicts: list[str]) -> str:
    """Return the verdict on all metrics.

    Source: Berger (1982): if every metric is equivalent, the level of all of them together needs no correction.
    """
    if DIFFERENT in verdicts:
        return DIFFERENT
    return EQUIVALENT if all(verdict == EQUIVALENT for verdict in verdicts) else UNDECIDED
