"""Power of the tests of paired differences: what a number of pairs can show, and how many pairs would be enough."""

import numpy as np
from scipy import optimize, stats

from common.statistics.paired import LEVEL

POWER = 0.8  # probability that a test shows a difference or an equivalence that exists
MAX_PAIRS = 1_000
# Numbers of pairs that are tried: all small ones, and steps of a few percent, since the answer is an estimate.
TRIED_PAIRS = np.unique(np.concatenate([np.arange(2, 40), np.geomspace(40, MAX_PAIRS, 60).round().astype(int)]))


def compute_power(shift: float, deviation: float, pairs: np.ndarray | int, level: float = LEVEL) -> np.ndarray:
    """Return the probability that a two-sided t-test shows a shift.

    Args:
        shift: The true mean of the differences.
        deviation: The standard deviation of the differences, above 0.
        pairs: Numbers of pairs, 2 or more.
        level: The level of the test.

    Source: Cohen (1988), chapter 2; the noncentral t distribution.
    """
    pairs = np.asarray(pairs)
    critical, center = stats.t.isf(level / 2, pairs - 1), abs(shift) / deviation * np.sqrt(pairs)
    power = stats.nct.sf(critical, pairs - 1, center) + stats.nct.cdf(-critical, pairs - 1, center)
    return np.asarray(np.nan_to_num(power, nan=1.0))  # SciPy returns NaN if the shift is many deviations


def find_smallest_shift(deviation: float, pairs: int, tests: int = 1) -> float:
    """Return the smallest shift that this number of pairs shows with the probability POWER.

    Args:
        deviation: The standard deviation of the differences.
        pairs: The number of pairs, 2 or more.
        tests: The number of tests that the level is corrected for.
    """
    if deviation == 0:
        return 0.0
    level = LEVEL / tests
    # A shift in units of the deviation that is large enough for more than POWER: the end of the search.
    largest = float((stats.t.isf(level / 2, pairs - 1) + stats.t.isf((1 - POWER) / 4, pairs - 1)) * 2)
    shift = optimize.brentq(lambda center: compute_power(center, 1.0, pairs, level) - POWER, 0.0, largest)
    return float(shift) * deviation


def count_pairs_needed(mean: float, deviation: float, margin: float, tests: int = 1) -> int | None:
    """Return the number of pairs that would show a difference or equivalence with the probability POWER.

    Args:
        mean: The mean of the differences, which is taken as the true one.
        deviation: The standard deviation of the differences.
        margin: Largest shift that counts as equivalent.
        tests: The number of tests that the level is corrected for.

    Returns:
        The number; None if more than MAX_PAIRS are needed.

    Source: Phillips (1990), power of two one-sided tests, from two noncentral t distributions.
    """
    pairs = TRIED_PAIRS.astype(float)
    if deviation == 0:
        shows_difference = (mean != 0) & (2.0 ** (1 - pairs) <= LEVEL / tests)
        shows_equivalence = (abs(mean) < margin or mean == 0) & (2.0**-pairs <= LEVEL)
    else:
        shows_difference = compute_power(mean, deviation, pairs, LEVEL / tests) >= POWER
        critical, scale = stats.t.isf(LEVEL, pairs - 1), np.sqrt(pairs) / deviation
        above = stats.nct.cdf(critical, pairs - 1, (mean + margin) * scale)  # probabilities that a test fails
        below = stats.nct.sf(-critical, pairs - 1, (mean - margin) * scale)
        shows_equivalence = 1 - above - below >= POWER
        shows_equivalence &= abs(mean) < margin
    sufficient = np.flatnonzero(shows_difference | shows_equivalence)
    return int(pairs[sufficient[0]]) if len(sufficient) else None
