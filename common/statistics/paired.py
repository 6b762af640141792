"""Tests of paired differences. A pair is two runs with the same seed; a difference is contestant minus reference.

Differences that are all equal have no variance, so a sign test replaces the t-tests for them. Differences count as
equal if they differ by no more than rounding in float64, as 0.9 - 0.8 and 0.8 - 0.7 do.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.05  # level of every test: the probability of a false "different" and of a false "equivalent"
RESAMPLES = 9_999  # number of resamples of the bootstrap
ROUNDING = 1e-12  # largest rounding error of a difference, relative to the largest value behind the differences

Interval = tuple[float, float]


@dataclass(frozen=True)
class Shift:
    """Mean of paired differences, with its uncertainty. Intervals have the confidence 1 - LEVEL."""

    pairs: int
    mean: float
    deviation: float  # standard deviation of the differences
    t_interval: Interval
    bootstrap_interval: Interval
    p_value: float  # two-sided p-value of the hypothesis that there is no shift


def measure_shift(differences: np.ndarray, scale: float = 0.0) -> Shift:
    """Return the mean of the differences, with confidence intervals and the p-value of no shift.

    Args:
        differences: Differences of the pairs, float64 [pairs].
        scale: Largest absolute value that the differences were computed from; 0 if they are exact.

    Source: Student's t-test of one sample; the percentile bootstrap of Efron and Tibshirani (1993), chapter 13.
    """
    pairs, mean = len(differences), float(np.mean(differences))
    if np.ptp(differences) <= ROUNDING * scale:
        p_value = float(stats.binomtest(pairs, pairs).pvalue) if abs(mean) > ROUNDING * scale else 1.0
        return Shift(pairs, mean, 0.0, (mean, mean), (mean, mean), p_value)
    p_value, t_interval = _run_t_test(differences, 0.0, "two-sided")
    bootstrap = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=1 - LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),  # the same report for the same runs
    )
    return Shift(
        pairs,
        mean,
        float(np.std(differences, ddof=1)),
        t_interval,
        _to_interval(bootstrap.confidence_interval),
        p_value,
    )


def check_equivalence(differences: np.ndarray, margin: float, scale: float = 0.0) -> float:
    """Return the p-value of a shift of `margin` or more, up or down: the larger one of two one-sided tests.

    Args:
        differences: Differences of the pairs, float64 [pairs].
        margin: Largest shift that counts as equivalent, 0 or more.
        scale: Largest absolute value that the differences were computed from; 0 if they are exact.

    Source: Schuirmann (1987), two one-sided tests (TOST).
    """
    if np.ptp(differences) <= ROUNDING * scale:
        shift, pairs = abs(float(np.mean(differences))), len(differences)
        is_within = shift <= ROUNDING * scale or shift < margin
        return float(stats.binomtest(pairs, pairs, alternative="greater").pvalue) if is_within else 1.0
    above, _ = _run_t_test(differences, -margin, "greater")
    below, _ = _run_t_test(differences, margin, "less")
    return max(above, below)


def correct_p_values(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of tests, because the smallest of several p-values is too small.

    If no metric differs, some corrected p-value is below LEVEL with a probability of at most LEVEL.

    Source: Benjamini and Hochberg (1995).
    """
    return [float(value) for value in stats.false_discovery_control(p_values)]


def _run_t_test(differences: np.ndarray, mean: float, alternative: str) -> tuple[float, Interval]:
    """Return the p-value of a t-test against `mean`, and the confidence interval of the mean of the differences."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # differences that are nearly equal lose precision
        test = stats.ttest_1samp(differences, mean, alternative=alternative)
    return float(test.pvalue), _to_interval(test.confidence_interval(1 - LEVEL))


def _to_interval(bounds: Sequence[float]) -> Interval:
    low, high = bounds
    return float(low), float(high)
