"""Gated sums g * p + (1 - g) * q of two arrays p and q with a gate g, as in highway networks.

A is the reference run of a diagnosis, and B the run that is compared with it. Sums in bfloat16 are not named: their
rounding errors exceed SAMPLE_TOLERANCE, and a larger tolerance would let other sums fit by coincidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from common.diagnose.explain.activation_difference import ACTIVATIONS, NO_ACTIVATION
from common.diagnose.explain.reductions import list_reduced
from common.diagnose.explain.sums import Terms
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

MOST_TERMS = 20  # number of the latest arrays that are tried
MOST_GATES = 6  # number of the latest arrays that may be the argument of the gate
SAMPLED_ELEMENTS = 200  # number of elements in a quick first check, which most candidates fail
SAMPLE_TOLERANCE = 1e-7  # largest relative difference of a sum on the sampled elements
SMALLEST_SHARE = 1e-4  # smallest norm of a branch that counts, relative to the norm of the sum
MOST_CHECKS = 8  # number of candidates that fit the sampled elements and are computed in full
LEAST_ELEMENTS = 32  # smallest size of an array that three arrays chosen at will do not fit by coincidence
NAMES = [name for name in ACTIVATIONS if "softmax" not in name and name not in ("exp", "the square", "squared relu")]


@dataclass(frozen=True)
class GatedSum:
    """A gate g and two branches p and q, whose gated sum is g * p + (1 - g) * q, with their titles in reports."""

    gate_title: str
    gate: np.ndarray
    titles: tuple[str, str]
    branches: tuple[np.ndarray, np.ndarray]


@np.errstate(all="ignore")
def explain_gated_sum(place: str, a: np.ndarray, b: np.ndarray, terms: Terms) -> Explanation | None:
    """Explain that one side computes a gated sum and the other side a variant of this sum. Return None otherwise.

    Args:
        place: Place of the code in reports.
        a: A's array [n, ...].
        b: B's array, of the same shape.
        terms: Earlier arrays, which are the same in A and B, with their titles.
    """
    if a.size < LEAST_ELEMENTS or not np.isfinite(a).all():
        return None
    fitting = [(name + title, array) for title, term in reversed(terms) for name, array in list_reduced(term, a.shape)][
        :MOST_TERMS
    ]
    for array, other, sides in ((a, b, ("A", "B")), (b, a, ("B", "A"))):
        known = _find_gated_sum(fitting, array)
        if known is not None and (explanation := _compare(place, known, other, sides)):
            return explanation
    return None


def _compare(place: str, known: GatedSum, other: np.ndarray, sides: tuple[str, str]) -> Explanation | None:
    """Return the change that turns a side's gated sum into the other side's array, or None if there is none."""
    gate, (p, q), (title_p, title_q) = known.gate, known.branches, known.titles
    shares = f"{title_p} times the gate, which is sigmoid of {known.gate_title}, and {title_q} times one minus the gate"
    side, other_side = sides
    changes = (
        ("gate", (1 - gate) * p + gate * q, "exchanges both branches"),
        ("residual", gate * p, f"does not add {title_q}"),
        ("residual", (1 - gate) * q, f"does not add {title_p}"),
        ("gate", gate * p + q, f"does not multiply {title_q}"),
        ("gate", p + (1 - gate) * q, f"does not multiply {title_p}"),
        ("gate", p + q, "multiplies neither"),
    )
    for cause, result, change in changes:
        if is_close(result, other):
            return Explanation(cause, f"{place}: {side} adds {shares}; {other_side} {change}")
    return None


def _find_gated_sum(terms: Terms, result: np.ndarray) -> GatedSum | None:
    """Return the gated sum of two terms, or of activations of terms, that equals an array; None if there is none.

    A term or its activation is not reported as a gated sum of two equal branches. Of equal candidates, such as a
    non-negative term and its ReLU, only the first one is tried.
    """
    if not terms:
        return None
    stream = np.random.default_rng(0)
    indices = stream.choice(result.size, min(result.size, SAMPLED_ELEMENTS), replace=False)
    values = result.ravel()[indices]
    direction = stream.standard_normal(len(indices))
    samples = [(title, term, _take(term, indices)) for title, term in terms]
    rows = np.concatenate([_apply_activations(sample) for _, _, sample in samples])
    numbers = _find_distinct(rows)
    rows = rows[numbers]
    if any(is_close(row, values, SMALLEST_SHARE) for row in rows):
        return None
    checks = 0
    for gate_title, gate_term, gate_sample in samples[:MOST_GATES]:
        gate = expit(gate_sample)
        if np.ptp(gate) == 0:  # with a constant gate, the sum of a term and its ReLU is a leaky ReLU
            continue
        products, wanted = (gate * rows) @ direction, (values - (1 - gate) * rows) @ direction
        order = np.argsort(products)
        gap = SAMPLE_TOLERANCE * np.sqrt((values @ values) * (direction @ direction))
        starts, ends = (np.searchsorted(products[order], wanted + sign * gap) for sign in (-1, 1))
        for row_q, (start, end) in enumerate(zip(starts, ends, strict=True)):
            for row_p in order[start:end]:
                if not _has_shares(gate * rows[row_p], (1 - gate) * rows[row_q], values):
                    continue
                known = _build(gate_title, expit(gate_term), samples, (numbers[row_p], numbers[row_q]))
                p, q = known.branches
                if is_close(known.gate * p + (1 - known.gate) * q, result):
                    return known
                checks += 1
                if checks == MOST_CHECKS:
                    return None
    return None


def _find_distinct(rows: np.ndarray) -> list[int]:
    """Return the indices of the rows that equal no earlier row."""
    numbers: dict[bytes, int] = {}
    for number, row in enumerate(rows + 0.0):  # -0.0 becomes 0.0
        numbers.setdefault(row.tobytes(), number)
    return list(numbers.values())


def _has_shares(share_p: np.ndarray, share_q: np.ndarray, values: np.ndarray) -> bool:
    """Check whether values are the sum of two shares, and neither share alone."""
    return is_close(share_p + share_q, values, SAMPLE_TOLERANCE) and not any(
        is_close(share, values, SMALLEST_SHARE) for share in (share_p, share_q)
    )


def _build(
    gate_title: str,
    gate: np.ndarray,
    samples: Sequence[tuple[str, np.ndarray, np.ndarray]],
    rows: tuple[int, int],
) -> GatedSum:
    titles, branches = [], []
    for row in rows:
        (title, term, _), name = samples[row // len(NAMES)], NAMES[row % len(NAMES)]
        titles.append(title if name == NO_ACTIVATION else f"{name} of {title}")
        branches.append(ACTIVATIONS[name](term))
    return GatedSum(gate_title, gate, (titles[0], titles[1]), (branches[0], branches[1]))


def _apply_activations(sample: np.ndarray) -> np.ndarray:
    return np.nan_to_num(np.stack([ACTIVATIONS[name](sample) for name in NAMES]))


def _take(array: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.asarray(array[np.unravel_index(indices, array.shape)])
