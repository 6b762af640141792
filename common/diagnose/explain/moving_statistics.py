"""Differences between the moving statistics of BatchNorm: another momentum, or another divisor of the variance.

A is the reference run of a diagnosis, and B the run that is compared with it. A moving statistic is updated as
new = (1 - momentum) * old + momentum * (statistic of the batch).
"""

import math
from collections.abc import Collection, Iterable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from common.diagnose.rounding import EXPLANATION_TOLERANCE, FACTOR_TOLERANCE, MACHINE_EPSILON, is_close
from common.diagnose.side_run import SideRun
from common.map.array_differences import compute_norm

MOMENTA = (0.1, 0.01, 0.001, 0.003, 0.05, 0.2)  # usual ones, as PyTorch defines the momentum: 1 - Keras's
COUNT_TOLERANCE = 0.01  # largest relative error of a number of elements that is computed from two variances
MOST_CALLS = 4  # number of calls of a layer in a forward pass, such as one for each view of an image


class VarianceDivisor(NamedTuple):
    """A moving variance that one side divides by n and the other side by n - 1.

    Attributes:
        name: Name of the moving variance.
        factor: B's variance of the first batch, as a multiple of A's.
        n: The larger divisor: the number of values of a channel in the batch.
    """

    name: str
    factor: float
    n: int


class FirstStep(NamedTuple):
    """A weight in the first compared step: its value before the step, and its values after the step in A and in B."""

    name: str
    start: np.ndarray
    a: np.ndarray
    b: np.ndarray


def is_moving_statistic(name: str) -> bool:
    """Check whether a weight is a moving statistic of BatchNorm."""
    return "running_" in name or "moving_" in name


def name_moving_variance(name: str) -> str:
    """Return the name of the moving variance of the layer with a moving mean; other names stay as they are."""
    return name.replace("running_mean", "running_var").replace("moving_mean", "moving_variance")


def find_momentum_factors(first_steps: Iterable[FirstStep], precision: str) -> dict[str, float]:
    """Return factors by the name of a moving statistic: its change in B's first step is the factor times A's change.

    Statistics with the factor 1, or without such a factor, are left out. Only the momentum explains a single factor
    for all elements: a difference of the activations changes each element in another way. A factor of a variance whose
    mean has no factor comes from another divisor.
    """
    factors, equal_means = {}, set()
    for name, start, after_a, after_b in first_steps:
        distance_a, distance_b = after_a - start, after_b - start
        if not is_moving_statistic(name) or not distance_a.any():
            continue
        factor = float((distance_b * distance_a).sum() / (distance_a**2).sum())
        is_exact = is_close(distance_a * factor, distance_b, _get_tolerance(precision, after_a, distance_a))
        if is_exact and abs(factor - 1) > FACTOR_TOLERANCE[precision]:
            factors[name] = factor
        elif is_exact and name_moving_variance(name) != name:
            equal_means.add(name_moving_variance(name))
    return {name: factor for name, factor in factors.items() if name not in equal_means}


def find_variance_divisor(
    first_steps: Iterable[FirstStep],
    precision: str,
    passes: int = 1,
    momenta: Collection[float] = MOMENTA,
    counts: Collection[int] = (),
) -> VarianceDivisor | None:
    """Return the first moving variance whose divisor is n on one side and n - 1 on the other.

    Args:
        first_steps: The weights in the first compared step.
        precision: Precision of the weights.
        passes: The number of forward passes in the step. A pass may call a layer several times, and each call moves
            the statistics.
        momenta: The momenta that the layers may have, as PyTorch defines them.
        counts: The numbers of elements, as far as they are known. A large n changes the variance less than an unknown
            reason may.
    """
    tolerance = FACTOR_TOLERANCE[precision]
    for name, start, after_a, after_b in first_steps:
        if not name.endswith(("running_var", "moving_variance")) or after_a.size < 2:
            continue
        for momentum, calls in product(momenta, range(1, MOST_CALLS + 1)):
            kept = (1 - momentum) ** (passes * calls)
            variance_a, variance_b = (after - kept * start for after in (after_a, after_b))
            factor = float((variance_a * variance_b).sum() / (variance_a * variance_a).sum())
            difference = 1 - min(factor, 1 / factor)  # 1 / n, because the factor is (n - 1) / n or its inverse
            is_known = difference > 0 and any(math.isclose(1 / difference, n, rel_tol=COUNT_TOLERANCE) for n in counts)
            if difference <= tolerance and not is_known:
                continue
            is_exact = is_close(variance_a * factor, variance_b, _get_tolerance(precision, after_a, variance_a))
            if is_exact and (is_known or abs(1 / difference - round(1 / difference)) < tolerance / difference):
                return VarianceDivisor(name, factor, round(1 / difference))
    return None


def _get_tolerance(precision: str, after: np.ndarray, part: np.ndarray) -> float:
    """Return the largest relative rounding error of a part of a moving statistic, such as its change in a step.

    The statistic is stored as a whole, so that a part which is small beside it has fewer digits.
    """
    return EXPLANATION_TOLERANCE[precision] + MACHINE_EPSILON[precision] * compute_norm(after) / (
        compute_norm(part) or 1.0
    )


def list_first_steps(a: SideRun, b: SideRun) -> Iterator[FirstStep]:
    """Yield the weights that have one shape before the first step and after it on both sides.

    There are none if a run ended in its first step.
    """
    if min(len(run.states) for run in (a, b)) < 2:
        return
    for name, start in a.states[0].weights.items():
        after_a, after_b = (run.states[1].weights.get(name) for run in (a, b))
        if after_a is not None and after_b is not None and after_a.shape == after_b.shape:
            yield FirstStep(name, start, after_a, after_b)
