"""Search for an array that only one side's code adds or multiplies, or that it passes through another activation.

A is the reference run of a diagnosis, and B the run that is compared with it. The candidates are arrays computed
earlier in the model. The search looks at b - a: everything that both sides add cancels. For example, a = x + y
and b = x + gelu(y) give b - a = gelu(y) - y, so x need not be known. Both results may have passed a ReLU.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from common.diagnose.explain.activation_difference import ACTIVATIONS, NO_ACTIVATION, ActivationFunction
from common.diagnose.explain.reductions import list_reduced
from common.diagnose.explain.sums import Terms
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

SAMPLED_ELEMENTS = 200  # number of elements in a quick first check, which most candidates fail
MOST_TERMS = 40  # number of the latest arrays that are tried
# Smallest share of elements that ReLU keeps on both sides; from fewer, no term before it can be found
LEAST_ACTIVE_OF_TERM = 0.02
SAMPLE_TOLERANCE = 1e-7
LARGEST_VALUE = 1e30  # largest result of a function; the square of a larger one may overflow
ZERO, ONE = "0", "1"
# Elementwise activations, and the constants 0 and 1, which stand for a missing term and a missing factor
FUNCTIONS: dict[str, ActivationFunction] = {
    ZERO: np.zeros_like,
    ONE: np.ones_like,
    **{name: function for name, function in ACTIVATIONS.items() if "softmax" not in name},
}
NAMES = list(FUNCTIONS)


@dataclass(frozen=True)
class _Difference:
    """The difference of two arrays. If a ReLU follows, it hides the negative values of both.

    Attributes:
        a: A's array.
        b: B's array, of the same shape.
        has_relu: Whether both arrays are outputs of a ReLU.
    """

    a: np.ndarray
    b: np.ndarray
    has_relu: bool

    @property
    def sampled_indices(self) -> np.ndarray:
        """Flat indices of the sampled elements: half of them random, half with the largest differences.

        If only a few elements differ, a random sample may contain none of them, and any function would fit.
        """
        known = ((self.a > 0) & (self.b > 0)).ravel().nonzero()[0] if self.has_relu else np.arange(self.a.size)
        if len(known) <= SAMPLED_ELEMENTS:
            return known
        half = SAMPLED_ELEMENTS // 2
        largest = known[np.argpartition(np.abs(self.b - self.a).ravel()[known], -half)[-half:]]
        return np.union1d(largest, np.random.default_rng(0).choice(known, half, replace=False))

    def equals(self, difference: np.ndarray) -> bool:
        """Check whether b - a equals an array, before ReLU if there is one."""
        if not np.abs(difference).max() < LARGEST_VALUE:
            return False
        if not self.has_relu:
            return is_close(self.a + difference, self.b)
        is_active_a, is_active_b = self.a > 0, self.b > 0
        forward, backward = np.maximum(self.a + difference, 0), np.maximum(self.b - difference, 0)
        return is_close(forward[is_active_a], self.b[is_active_a]) and is_close(
            backward[is_active_b], self.a[is_active_b]
        )


@np.errstate(all="ignore")
def explain_terms(
    place: str, a: np.ndarray, b: np.ndarray, terms: Terms, side_terms: tuple[Terms, Terms] = ((), ())
) -> Explanation | None:
    """Return the earlier array that only one of two sums has as a term or factor, or None if there is none.

    Args:
        place: Place of the code in reports.
        a: A's array [n, ...].
        b: B's array.
        terms: Earlier arrays that are the same in A and B, as (title, array), the oldest first.
        side_terms: Earlier arrays whose values already differ between the sides: A's versions and B's versions.
    """
    if a.ndim < 2 or not np.isfinite(a).all() or not np.isfinite(b).all():
        return None
    fitting, terms_of_a, terms_of_b = (_fit_terms(chosen, a.shape) for chosen in (terms, *side_terms))
    latest = fitting[:MOST_TERMS]
    for has_relu in (False, True):
        if has_relu and ((a < 0).any() or (b < 0).any() or ((a > 0) & (b > 0)).mean() < LEAST_ACTIVE_OF_TERM):
            continue
        difference = _Difference(a, b, has_relu)
        explanation = (
            _find_term(place, difference, fitting)
            or _find_term(place, difference, terms_of_a, "A")
            or _find_term(place, difference, terms_of_b, "B")
            or _find_exchange(place, difference, [*latest, *terms_of_a], [*latest, *terms_of_b])
            or _find_functions(place, difference, latest)
        )
        if explanation is not None:
            return explanation
    return None


def _fit_terms(terms: Terms, shape: tuple[int, ...]) -> Terms:
    """Return the latest terms in each form of this shape, such as their mean, first token or transpose."""
    return [
        (name + title, array)
        for title, term in list(reversed(terms))[:MOST_TERMS]
        for name, array in list_reduced(term, shape)
    ]


def _find_term(place: str, difference: _Difference, terms: Terms, only_side: str = "") -> Explanation | None:
    """Look for a term t and a number c with b - a = c * t.

    only_side: "A" or "B" if the terms exist on that side alone.
    """
    indices = difference.sampled_indices
    values = (difference.b - difference.a).ravel()[indices]
    for title, term in terms:
        sample = _take(term, indices)
        factor = float(values @ sample / (sample @ sample)) if np.count_nonzero(sample) > 2 else 0.0
        if not factor or not is_close(factor * sample, values, SAMPLE_TOLERANCE):
            continue
        if difference.equals(factor * term):
            side, other = "BA" if factor > 0 else "AB"
            if only_side not in ("", side):
                continue
            if np.isclose(abs(factor), 1):
                return Explanation("residual", f"{place}: {side} adds {title}, {other} does not")
            return Explanation("scale", f"{place}: {side} adds {abs(factor):.6g} times {title} more than {other}")
    return None


def _find_exchange(place: str, difference: _Difference, terms_a: Terms, terms_b: Terms) -> Explanation | None:
    """Look for terms s, t and activations f, g with b - a = g(t) - f(s): A adds f(s), and B adds g(t) instead."""
    if not terms_a or not terms_b:
        return None
    indices = difference.sampled_indices
    values = (difference.b - difference.a).ravel()[indices]
    if not values.any():
        return None
    names = NAMES[2:]  # without ZERO and ONE
    rows_a, rows_b = (
        np.concatenate([_apply_functions(_take(term, indices))[2:] for _, term in terms])
        for terms in (terms_a, terms_b)
    )
    # If row_b - row_a == values, then row_b @ v == (row_a + values) @ v for any v. One random v, `direction`, turns
    # the search for pairs into a sorted look-up.
    direction = np.random.default_rng(0).standard_normal(len(indices))
    gap = SAMPLE_TOLERANCE * np.sqrt((values @ values) * (direction @ direction))
    wanted, products = (rows_a + values) @ direction, rows_b @ direction
    order = np.argsort(products)
    starts, ends = (np.searchsorted(products[order], wanted + sign * gap) for sign in (-1, 1))
    pairs = [
        (row_a, row_b)
        for row_a, (start, end) in enumerate(zip(starts, ends, strict=True))
        for row_b in order[start:end]
        if is_close(rows_b[row_b] - rows_a[row_a], values, SAMPLE_TOLERANCE)
    ]
    for row_pair in sorted(pairs, key=lambda pair: sum(row % len(names) for row in pair)):  # simple functions first
        titles, texts, arrays = set(), [], []
        for row, terms in zip(row_pair, (terms_a, terms_b), strict=True):
            (title, term), name = terms[row // len(names)], names[row % len(names)]
            titles.add(title)
            texts.append(_describe_function(name, title))
            arrays.append(FUNCTIONS[name](term))
        if difference.equals(arrays[1] - arrays[0]):
            cause = "activation" if len(titles) == 1 else "addition"
            return Explanation(cause, f"{place}: A adds {texts[0]}, B adds {texts[1]} instead")
    return None


def _find_functions(place: str, difference: _Difference, terms: Terms) -> Explanation | None:
    """Look for a term t with b - a = f_b(t) - f_a(t), or b - a = s * (f_b(t) - f_a(t)) for another term s."""
    indices = difference.sampled_indices
    values = (difference.b - difference.a).ravel()[indices]
    if not values.any():
        return None
    samples = [_take(term, indices) for _, term in terms]
    tables = [_apply_functions(sample) for sample in samples]
    factors = [(None, np.ones(len(indices))), *enumerate(samples)]
    for factor_index, factor in factors:
        for index, table in enumerate(tables):
            if index == factor_index:
                continue
            for name_a, name_b in _find_pairs(factor * table, values):
                if factor_index is None and ONE in (name_a, name_b):  # a missing factor needs another factor
                    continue
                term = terms[index][1]
                other = 1.0 if factor_index is None else terms[factor_index][1]
                change = other * (FUNCTIONS[name_b](term) - FUNCTIONS[name_a](term))
                if difference.equals(change):
                    factor_title = None if factor_index is None else terms[factor_index][0]
                    return _describe(place, factor_title, terms[index][0], name_a, name_b)
    return None


def _find_pairs(table: np.ndarray, values: np.ndarray) -> Iterator[tuple[str, str]]:
    """Yield each (name_a, name_b) with `values` = result of name_b - result of name_a.

    table: The results [functions, samples], in the order of NAMES.
    """
    norm = np.sqrt(values @ values)
    for row_a, results in enumerate(table):
        gaps = np.sqrt(((table - results - values) ** 2).sum(1))
        for row_b in (gaps <= SAMPLE_TOLERANCE * norm).nonzero()[0]:
            if {NAMES[row_a], NAMES[row_b]} != {ZERO, ONE}:  # 1 - 0 does not depend on the term
                yield NAMES[row_a], NAMES[row_b]


def _describe(place: str, factor_title: str | None, title: str, name_a: str, name_b: str) -> Explanation:
    texts = [_describe_function(name, title) for name in (name_a, name_b)]
    for side, other, name, text in (("A", "B", name_b, texts[0]), ("B", "A", name_a, texts[1])):
        if name == ZERO:  # `other` has no such term, and `text` describes the term of `side`
            times = "" if factor_title is None else f"{factor_title} times "
            return Explanation("residual", f"{place}: {side} adds {times}{text}, {other} does not")
        if name == ONE and factor_title is not None:
            return Explanation("gate", f"{place}: {side} multiplies {factor_title} by {text}, {other} does not")
    verb = "adds" if factor_title is None else f"multiplies {factor_title} by"
    return Explanation("activation", f"{place}: A {verb} {texts[0]}, B {texts[1]}")


def _describe_function(name: str, title: str) -> str:
    return title if name == NO_ACTIVATION else f"{name} of {title}"


def _apply_functions(sample: np.ndarray) -> np.ndarray:
    results = np.stack([function(sample) for function in FUNCTIONS.values()])
    return np.clip(np.nan_to_num(results), -LARGEST_VALUE, LARGEST_VALUE)


def _take(array: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.asarray(array[np.unravel_index(indices, array.shape)])
