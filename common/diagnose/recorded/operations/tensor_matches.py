"""Tensors with the same numbers in two records, whatever their layout: their statistics are equal up to rounding.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

import numpy as np

from common.recording.operation_format import TensorStatistics

MOST_COMPARED = 64  # operations of a side, and tensors of an operation, that are compared with each of the other side's
CLOSER = 0.1  # share of the distance of two tensors, or of the tolerance, that is much less
LEAST_MASK = 1e4  # smallest size of a number that masks others
MASK_TOLERANCE = 1e-3  # largest relative difference of two counts of the same masked numbers
SAME_NUMBERS = 1e-6  # largest relative difference of the statistics of two tensors with the same numbers


class TensorMatches:
    """Tensors of A's operations and tensors of B's that have the same numbers."""

    def __init__(
        self,
        a: Sequence[TensorStatistics],
        b: Sequence[TensorStatistics],
        tolerance: float,
        known: Collection[tuple[int, int]] = (),
        *,
        is_ordered: bool = False,
    ) -> None:
        """Prepare to match.

        Args:
            a: A's tensors by number.
            b: B's tensors by number.
            tolerance: Largest difference of two statistics, relative to the largest that the statistic could be.
            known: Numbers in A and in B of tensors that are equal, whatever their statistics.
            is_ordered: Whether tensors of the same sizes with the same numbers in another order are no matches.
        """
        self._known = frozenset(known)
        self._a, self._b = _tabulate(a), _tabulate(b)
        self._tolerance = tolerance
        self._tensors = (a, b) if is_ordered else None

    def are_equal(self, a: int, b: int) -> bool:
        """Check whether tensor `a` of A and tensor `b` of B have the same numbers."""
        if (a, b) in self._known:
            return True
        return bool(self._compare(self._a[[a]], self._b[b])[0]) and not self._have_other_orders(a, b)

    def are_reordered(self, a: int, b: int) -> bool:
        """Check whether tensor `a` of A and tensor `b` of B have the same numbers in another order."""
        return bool(self._compare(self._a[[a]], self._b[b])[0]) and self._have_other_orders(a, b)

    def _have_other_orders(self, a: int, b: int) -> bool:
        """Check whether two tensors with the same numbers in the same sizes surely have them in another order."""
        if self._tensors is None:
            return False
        centers_a, centers_b = (_list_centers(side[x]) for side, x in zip(self._tensors, (a, b), strict=True))
        if not centers_a or [size for size, _ in centers_a] != [size for size, _ in centers_b]:
            return False
        count, norm = self._a[a, :2]
        limit = self._tolerance * norm * math.sqrt(count)
        return any(abs(x - y) > limit for (_, x), (_, y) in zip(centers_a, centers_b, strict=True))

    def are_measured(self, tensors: Iterable[int]) -> bool:
        """Check whether the statistics of tensors of A decide with which tensors of B they are equal."""
        return {a for a, b in self._known if not self._compare(self._a[[a]], self._b[b])[0]}.isdisjoint(tensors)

    def are_multiples(self, a: int, b: int, factor: float) -> bool:
        """Check whether tensor `b` of B has the numbers of tensor `a` of A times a factor greater than 0."""
        factors = np.array([1.0, *[factor] * 4])
        return bool(self._compare(self._a[[a]] * factors, self._b[b])[0])

    def are_negated(self, a: int, b: int) -> bool:
        """Check whether tensor `b` of B has the numbers of tensor `a` of A with the other signs."""
        size, norm, total, minimum, maximum = self._a[a]
        negated = np.array([[size, norm, -total, -maximum, -minimum]])
        return bool(self._compare(negated, self._b[b])[0]) and not self.are_equal(a, b)

    def find_factor(self, a: int, b: int) -> float | None:
        """Return the numbers of tensor `b` of B divided by those of tensor `a` of A; None if they are no multiples.

        Tensors of equal numbers have no factor, and neither have tensors that hold a single number: any other one is
        its multiple.
        """
        (size, norm, _, minimum, maximum), (size_b, norm_b, *_) = self._a[a], self._b[b]
        if not (size == size_b and norm > 0 and norm_b > 0 and minimum < maximum):
            return None
        factor = float(norm_b / norm)
        if math.isclose(factor, 1, rel_tol=self._tolerance):  # the same numbers in another order
            return None
        return factor if self.are_multiples(a, b, factor) and not self.are_equal(a, b) else None

    def count_equal(self, a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
        """Return how many tensors of two lists, of A and of B, are equal, and how many others both lists have."""
        remaining = [*b[:MOST_COMPARED]]
        for tensor in a[:MOST_COMPARED]:
            counterpart = next((other for other in remaining if self.are_equal(tensor, other)), None)
            if counterpart is not None:
                remaining.remove(counterpart)
        equal = len(b[:MOST_COMPARED]) - len(remaining)
        return equal, len(a) + len(b) - 2 * equal

    def is_matched_by_chance(self, tensor: int, *, is_of_a: bool) -> bool:
        """Check whether another tensor of a side is much closer to each counterpart of a tensor of this side.

        A sum with a small term, for example, may equal the sum without it within the tolerance.
        """
        rows, others = (self._a, self._b) if is_of_a else (self._b, self._a)
        size, norm = rows[tensor, :2]
        counterparts = others[self._compare(others, rows[tensor])][:, 1]
        norms = rows[rows[:, 0] == size][:, 1]
        closest = np.array([np.nanmin(np.abs(norms - counterpart)) for counterpart in counterparts])
        distances = np.abs(norm - counterparts)
        are_exact = distances <= CLOSER * self._tolerance * np.abs(counterparts)
        return bool(len(counterparts)) and bool((~are_exact & (closest <= CLOSER * distances)).all())

    @cached_property
    def matched(self) -> tuple[frozenset[int], frozenset[int]]:
        """The numbers of A's tensors that have a counterpart in B, and of B's tensors that have one in A."""
        of_a, of_b = self._list_matched(self._a, self._b), self._list_matched(self._b, self._a)
        if self._tensors is not None:
            equal = [(a, b) for a in sorted(of_a) for b in self._list_equal(a)]
            of_a, of_b = frozenset(a for a, _ in equal), frozenset(b for _, b in equal)
        return of_a.union(a for a, _ in self._known), of_b.union(b for _, b in self._known)

    def _list_equal(self, a: int) -> list[int]:
        """Return the tensors of B that equal a tensor of A, also in their order."""
        numbers = np.flatnonzero(self._compare(self._b, self._a[a])).tolist()
        return [b for b in numbers if not self._have_other_orders(a, b)]

    def _list_matched(self, tensors: np.ndarray, others: np.ndarray) -> frozenset[int]:
        """Return the indices of the rows of `tensors` that some row of `others` equals."""
        others = np.unique(others, axis=0)  # many may be zeros of one size
        norms = others[:, 1]
        order = np.argsort(norms, kind="stable")
        ordered = others[order]
        distinct, groups = np.unique(tensors, axis=0, return_inverse=True)
        matched = []
        for index, row in enumerate(distinct):
            if math.isnan(row[1]):
                continue
            margin = self._tolerance * abs(row[1])
            start, end = np.searchsorted(ordered[:, 1], [row[1] - margin, row[1] + margin * (1 + self._tolerance)])
            end = max(end, start + np.searchsorted(ordered[start:, 1], row[1], side="right"))
            if self._compare(ordered[start:end], row).any():
                matched.append(index)
        return frozenset(np.flatnonzero(np.isin(groups.reshape(-1), matched)).tolist())

    def _compare(self, rows: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Return a mask of the `rows` of statistics that equal the single `row` within the tolerance."""
        count, norm, _, minimum, maximum = row
        largest = max(abs(minimum), abs(maximum))
        with np.errstate(invalid="ignore", over="ignore"):
            scales = np.array([0.0, norm, norm * np.sqrt(count), largest, abs(maximum) if _is_masked(row) else largest])
            return np.asarray((np.abs(rows - row) <= self._tolerance * scales).all(1))


def _is_masked(row: np.ndarray) -> bool:
    """Check whether the smallest number of a tensor, a mask before a softmax, outweighs all others.

    The sum and the norm are then those of the mask, so that the tensors of all layers with the mask seem equal.
    """
    _, norm, total, minimum, maximum = row
    if not minimum <= -LEAST_MASK or maximum in (minimum, 0):
        return False
    return math.isclose(total / minimum, (norm / minimum) ** 2, rel_tol=MASK_TOLERANCE)


def _tabulate(tensors: Sequence[TensorStatistics]) -> np.ndarray:
    """Return statistics as [n, 5]: number of elements, norm, sum, minimum and maximum; NaN if unknown."""
    rows = [
        [math.prod(tensor["shape"]), *(_to_float(tensor[name]) for name in ("norm", "sum", "minimum", "maximum"))]
        for tensor in tensors
    ]
    return np.array(rows, np.float64).reshape(-1, 5)


def _list_centers(tensor: TensorStatistics) -> list[tuple[int, float]]:
    """Return the size of each axis with more than one element, and the center, in the order of both."""
    axes = zip(tensor["shape"], tensor.get("centers", ()), strict="centers" in tensor)
    return sorted((size, center) for size, center in axes if size > 1)


def _to_float(value: float | None) -> float:
    return math.nan if value is None else float(value)
