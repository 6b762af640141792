"""Weights that a script keeps within bounds after each update, such as a critic's or those of a Keras constraint.

Keras applies the constraints of its variables within the update, and a PyTorch script clips its parameters after it.
A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from common.diagnose.findings import Stage
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.recorded_updates import RecordedUpdate

CHANGE_TOLERANCE = 1e-5  # largest change that is rounding, as a share of the largest weight
BOUND_TOLERANCE = 1e-4  # largest relative difference of two bounds that count as equal
MIN_CLIPPED = 2  # number of elements that must lie on the bounds: one element alone may have any value


class Bounds(NamedTuple):
    """The bounds within which a script keeps weights: infinite if no element shows one."""

    lower: float
    upper: float

    @property
    def words(self) -> str:
        """The bounds in words, such as "within [-0.01, 0.01]" or "at 0 or more"."""
        if np.isinf(self.upper):
            return f"at {self.lower:.6g} or more"
        return (
            f"at {self.upper:.6g} or less" if np.isinf(self.lower) else f"within [{self.lower:.6g}, {self.upper:.6g}]"
        )


BoundsOfSteps = Mapping[int, Mapping[str, Bounds]]  # the bounds by the number of the step and the name of the variable


def find_bounds(changes: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Bounds]:
    """Return the bounds of the variables that were clipped, by name.

    One clipped element of a variable may have any value: it counts if it has a bound of another variable.

    Args:
        changes: By name, the weights before and after the change, of one shape. NaN before it are unknown.
    """
    bounds = {name: value for name, change in changes.items() if (value := _find_bounds(*change)) is not None}
    known = [value for name, value in bounds.items() if _count_changed(*changes[name]) >= MIN_CLIPPED]
    return {
        name: value
        for name, value in bounds.items()
        if value in known or any(_count_changed(*changes[name]) and _are_equal(value, other) for other in known)
    }


def _find_bounds(start: np.ndarray, end: np.ndarray) -> Bounds | None:
    """Return the bounds to which weights were clipped; None if they changed in another way, or not at all."""
    raised, lowered = _list_changed(start, end)
    if not raised.any() and not lowered.any():
        return None
    lower = float(end[raised].min()) if raised.any() else -np.inf
    upper = float(end[lowered].max()) if lowered.any() else np.inf
    if lower > upper:
        return None
    clipped = np.where(np.isnan(start), end, np.clip(start, lower, upper))
    return Bounds(lower, upper) if np.abs(clipped - end).max() <= _get_rounding(end) else None  # NaN fit no bounds


def _list_changed(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements that a change raises, and those that it lowers, as masks."""
    difference = np.where(np.isnan(start), 0.0, end - start)
    return difference > _get_rounding(end), difference < -_get_rounding(end)


def _count_changed(start: np.ndarray, end: np.ndarray) -> int:
    raised, lowered = _list_changed(start, end)
    return int(np.count_nonzero(raised | lowered))


def _get_rounding(end: np.ndarray) -> float:
    return CHANGE_TOLERANCE * float(np.abs(end).max(initial=0.0))


def _are_equal(a: Bounds, b: Bounds) -> bool:
    """Check whether two pairs of bounds are equal, as far as both are known."""
    pairs = ((a.lower, b.lower), (a.upper, b.upper))
    known = [(x, y) for x, y in pairs if np.isfinite(x) and np.isfinite(y)]
    return bool(known) and all(abs(x - y) <= BOUND_TOLERANCE * max(abs(x), abs(y)) for x, y in known)


def undo_clipping(recorded: RecordedUpdate) -> tuple[RecordedUpdate, dict[str, Bounds]]:
    """Return an update with weights that are not clipped, as its formula computes them, and the bounds by name."""
    update = recorded.update
    after = {**update.weights_after}
    bounds = find_bounds({name: (expected, after[name]) for name, expected in recorded.expected_weights.items()})
    for name in bounds:
        expected = recorded.expected_weights[name]
        after[name] = np.where(np.isnan(expected), after[name], expected)
    return replace(recorded, update=replace(update, weights_after=after)), bounds


def compare_bounds(stage: Stage, pair: RecordPair, step: int, within_updates: Mapping[str, BoundsOfSteps]) -> list[str]:
    """Add a cause if only one script keeps weights within bounds, or each within other bounds.

    Args:
        stage: The stage that gets the cause.
        pair: The records.
        step: The number of the update after which the scripts clip.
        within_updates: By side, the bounds of the weights that the updates themselves clip.

    Returns:
        The titles of the variables that a script clips.
    """
    bounds = {side.name: _list_bounds(side, step, within_updates[side.name]) for side in pair.sides}
    clipped, differing = [], []
    for match in pair.models.variables:
        a, b = _pick(bounds["a"], match.names_a), _pick(bounds["b"], match.names_b)
        if a is not None or b is not None:
            clipped.append(match.title)
            if not _are_alike(
                a, b, match.read_a(pair.a.read_before(step + 1)), match.read_b(pair.b.read_before(step + 1))
            ):
                differing.append((match.title, a, b))
    if differing and not stage.has_cause_of("b", ["clipped_weights"]):
        title, a, b = differing[0]
        stage.add_mismatch(f"step {step}: {title}")
        words = {name: value.words for name, value in (("A", a), ("B", b)) if value is not None}
        clipping, lacking = ("A", "B") if a is not None else ("B", "A")
        sentence = f"the script of {clipping} keeps {title} {words[clipping]} after each update, "
        sentence += f"and that of {lacking} {words.get(lacking, 'does not')}"
        more = f" ({len(differing) - 1} more differ in this way)" if len(differing) > 1 else ""
        stage.add_cause("clipped_weights", "b", title, sentence + more)
    return clipped


def _list_bounds(side: RecordedSide, step: int, within_updates: BoundsOfSteps) -> dict[str, Bounds]:
    """Return the bounds within which a side's script keeps its weights after the update of a step, by name."""
    after_update, end = side.read_weights(step), side.read_before(step + 1)
    changes = {
        name: (array, end[name])
        for name, array in after_update.items()
        if name in end and array.dtype.kind == "f" and array.shape == end[name].shape
    }
    return find_bounds(changes) | {**within_updates.get(step, {})}


def _pick(bounds: Mapping[str, Bounds], names: Sequence[str]) -> Bounds | None:
    """Return the bounds of the first of the names that has some, or None."""
    return next((bounds[name] for name in names if name in bounds), None)


def _are_alike(a: Bounds | None, b: Bounds | None, end_a: np.ndarray | None, end_b: np.ndarray | None) -> bool:
    """Check whether both scripts keep a variable within the same bounds, as far as its weights show them."""
    if a is not None and b is not None:
        return _are_equal(a, b)
    bounds, end = (a, end_b) if a is not None else (b, end_a)
    assert bounds is not None
    if end is None or not end.size:
        return True
    excess = BOUND_TOLERANCE * float(np.abs(end).max())
    return bool(end.min() >= bounds.lower - excess and end.max() <= bounds.upper + excess)
