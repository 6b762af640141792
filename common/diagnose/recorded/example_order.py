"""Comparison of two batches: whether they have the same examples, and in which order.

A is the reference record of a diagnosis, and B the record that is compared with it. A projection is one number that
identifies an example: a random weighted sum of its values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, softmax

from common.diagnose.recorded.array_layouts import convert_to_layout
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.rounding import is_close
from common.map.array_differences import relative_difference

# How well two arrays fit one another: arrays that are unlike are not paired
EQUAL_VALUES, EQUAL_SIZES, ALIKE, UNLIKE = range(4)
CLOSE = 1e-5  # largest relative difference of two values that count as the same; x / 255 and x * (1 / 255) differ
# The same, relative to the largest value, if another model computes some of the inputs, such as images: in the first
# step it rounds, and in later steps its updates add up roundings
COMPUTED, DRIFTED = 2e-6, 1e-3
COMPUTED_OUTPUTS = 1e-4  # the same of outputs as logits and as probabilities


@dataclass(frozen=True)
class ArrayPair:
    """An array of a batch of A, and its counterpart in B in A's layout, with an example in each row.

    Attributes:
        name: Name of the array in A.
        a: A's array.
        b: B's array in A's layout.
        is_label: Whether the array holds labels.
        name_b: Name of the array in B.
    """

    name: str
    a: np.ndarray
    b: np.ndarray
    is_label: bool = False
    name_b: str = ""

    @property
    def title(self) -> str:
        """Name of the array in reports."""
        return f"label {self.name}" if self.is_label else f"input {self.name}"


def pair_arrays(
    a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], *, are_labels: bool = False, are_outputs: bool = False
) -> tuple[list[ArrayPair], list[str], list[str]]:
    """Pair the arrays of two batches by name. Pair the remaining arrays by equal values, by size and by closest values.

    Names do not suffice: frameworks sort a model's outputs differently, and a loss may also receive lengths or weights.
    If a batch has several labels, their names do not count, because these are the arguments of the loss functions in
    the order of the calls. The names of outputs, which are mostly their places, do not count if others fit better.

    Args:
        a: The arrays of A by name.
        b: The arrays of B by name.
        are_labels: Whether they are labels.
        are_outputs: Whether they are outputs of the models.

    Returns:
        The pairs, and the names of the arrays of A and of B that have no counterpart.
    """
    names = set() if are_labels and max(len(a), len(b)) > 1 else a.keys() & b.keys()
    if are_outputs and max(len(a), len(b)) > 1:
        names -= {name for name in names if _fits_another(name, a, b) or _fits_another(name, b, a)}
    pairs = [(name, name) for name in names]
    unpaired_a, unpaired_b = [name for name in a if name not in names], [name for name in b if name not in names]
    measure_fit = _fit_label if are_labels else _fit_output if are_outputs else _fit_array
    fits = {(x, y): measure_fit(a[x], b[y]) for x in unpaired_a for y in unpaired_b}
    for fit in (EQUAL_VALUES, EQUAL_SIZES, ALIKE):
        for name in list(unpaired_a):
            candidates = {other: b[other] for other in unpaired_b if fits[name, other] == fit}
            if candidates:
                other = min(candidates, key=lambda key: _measure_distance(a[name], candidates[key]))
                pairs.append((name, other))
                unpaired_a.remove(name)
                unpaired_b.remove(other)
    pairs.sort(key=lambda pair: [*a].index(pair[0]))
    arrays = [
        ArrayPair(name, a[name], convert_to_layout(b[other], a[name]), are_labels, other) for name, other in pairs
    ]
    return arrays, unpaired_a, unpaired_b


def _fits_another(name: str, arrays: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> bool:
    """Check whether an array fits one of the others better than the one that has its name."""
    fit = _fit_output(arrays[name], others[name])
    return any(_fit_output(arrays[name], other) < fit for other in others.values())


def _fit_label(a: np.ndarray, b: np.ndarray) -> int:
    """Rate how well two arrays of labels fit: EQUAL_VALUES, EQUAL_SIZES or ALIKE."""
    if a.ndim == 2 and b.ndim == 1 and a.shape[1] > 1:  # B in one-hot form would need much memory
        is_one_hot = bool(((a == 0) | (a == 1)).all() and (a.sum(1) == 1).all())
        return EQUAL_VALUES if is_one_hot and np.array_equal(a.argmax(1), b) else ALIKE
    if np.array_equal(a, convert_to_layout(b, a)):
        return EQUAL_VALUES
    return EQUAL_SIZES if a.shape[1:] == b.shape[1:] else ALIKE


def _fit_array(a: np.ndarray, b: np.ndarray) -> int:
    """Rate how well two inputs, or two outputs, fit: EQUAL_VALUES, EQUAL_SIZES, ALIKE or UNLIKE."""
    is_float = [array.dtype.kind == "f" for array in (a, b)]
    sizes = [int(np.prod(array.shape[1:])) for array in (a, b)]
    if sizes[0] != sizes[1]:
        return ALIKE if is_float[0] == is_float[1] and a.ndim == b.ndim else UNLIKE
    converted = convert_to_layout(b, a)
    return EQUAL_VALUES if a.shape == converted.shape and are_close(_to_rows(a), _to_rows(converted)) else EQUAL_SIZES


def _fit_output(a: np.ndarray, b: np.ndarray) -> int:
    """Rate how well two outputs fit, also if only one model converts its logits to probabilities."""
    fit = _fit_array(a, b)
    if fit != EQUAL_SIZES or a.ndim < 2 or a.dtype.kind != "f" or b.dtype.kind != "f":
        return fit
    converted = convert_to_layout(b, a)
    for logits, probabilities in ((a, converted), (converted, a)):
        numbers = logits.astype(np.float64)
        computed = (expit(numbers), softmax(numbers, -1), softmax(numbers, 1))
        if any(is_close(x, probabilities, COMPUTED_OUTPUTS) for x in computed):
            return EQUAL_VALUES
    return fit


def _measure_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return a distance between the values of two arrays in any order of the examples; inf for different sizes.

    Arrays with the examples in the same order are not far apart if one follows from the other by a scale and a shift.
    """
    if a.size != b.size:
        return np.inf
    a, b = (np.nan_to_num(array.astype(np.float64)) for array in (a, convert_to_layout(b, a)))
    distance = relative_difference(np.sort(a, axis=None), np.sort(b, axis=None))
    if a.shape != b.shape or not (a.std() and b.std()):
        return distance
    correlation = float(np.corrcoef(a.ravel(), b.ravel())[0, 1])
    return min(distance, float(np.sqrt(max(0.0, 1 - correlation**2))))


def find_order(pairs: Sequence[ArrayPair], tolerance: float = CLOSE) -> np.ndarray | None:
    """Return, for each example of B, its index among A's examples; None if the examples are not the same.

    Examples are sorted by a random projection of their values, which rounding errors hardly change.

    Args:
        pairs: The arrays.
        tolerance: Largest difference of two values that count as the same, relative to the largest value.
    """
    if not pairs or any(pair.a.shape != pair.b.shape for pair in pairs):
        return None
    a, b = (np.concatenate([_to_rows(getattr(pair, side)) for pair in pairs], axis=1) for side in "ab")
    if are_close(a, b, tolerance):
        return np.arange(len(a))
    direction = np.random.default_rng(0).standard_normal(a.shape[1])
    order_a, order_b = np.argsort(a @ direction, kind="stable"), np.argsort(b @ direction, kind="stable")
    if not are_close(a[order_a], b[order_b], tolerance):
        return None
    order = np.empty(len(a), int)
    order[order_b] = order_a
    return order


def sort_examples(b: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return B's examples in A's order."""
    ordered = np.empty_like(b)
    ordered[order] = b
    return ordered


def count_known(projections: np.ndarray, known: np.ndarray) -> int:
    """Count the projections that also occur among the known projections."""
    gaps = np.abs(projections[:, None] - known[None]).min(1) if known.size else np.full(len(projections), np.inf)
    return int((gaps <= CLOSE * max(float(np.abs(known).max(initial=0)), 1e-30)).sum())


def project_steps(
    side: RecordedSide, names: Sequence[str], steps: Sequence[int], layout: Sequence[ArrayPair]
) -> np.ndarray:
    """Return the projections of a side's examples in several steps.

    Args:
        side: The side.
        names: Names of the inputs.
        steps: The steps. A step that lacks one of the inputs, or has it in another shape, is left out.
        layout: Pairs of arrays. The layout of A's is that to project.
    """
    projections = []
    for step in steps:
        batch = side.batches.read_step(step, "input")
        arrays = [convert_to_layout(batch[name], pair.a) for name, pair in zip(names, layout, strict=True)
                  if name in batch]  # fmt: skip
        if len(arrays) == len(names) and all(
            array.shape[1:] == pair.a.shape[1:] for array, pair in zip(arrays, layout, strict=True)
        ):
            projections.append(project_examples(arrays))
    return np.concatenate(projections) if projections else np.empty(0)


def project_examples(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return a random projection of each example [n]."""
    rows = np.concatenate([_to_rows(array) for array in arrays], axis=1)
    return np.asarray(rows @ np.random.default_rng(0).standard_normal(rows.shape[1]))


def are_close(a: np.ndarray, b: np.ndarray, tolerance: float = CLOSE) -> bool:
    """Check whether two batches [n, values] have the same values up to rounding, or up to a larger tolerance."""
    a, b = (array.astype(np.float64) if array.dtype.kind in "bu" else array for array in (a, b))
    scale = np.abs(a).max(initial=0) + 1e-30
    absolute = (1e-7 if tolerance == CLOSE else tolerance) * scale
    with np.errstate(invalid="ignore"):
        return a.shape == b.shape and bool((np.abs(a - b) <= CLOSE * np.abs(a) + absolute).all())


def _to_rows(array: np.ndarray) -> np.ndarray:
    return np.nan_to_num(array.reshape(len(array), int(np.prod(array.shape[1:]))).astype(np.float64))
