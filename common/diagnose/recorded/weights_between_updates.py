"""Weights that the scripts change between two updates: averages of other weights, clipped or loaded weights.

A target network, for example, has averages of the trained weights. One script may average them within the recorded
step, and the other between two steps: the weights before the next update are compared. A is the reference record of a
diagnosis, and B the record that is compared with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from common.diagnose.explain.moving_statistics import is_moving_statistic
from common.diagnose.findings import Stage
from common.diagnose.recorded.clipped_weights import BoundsOfSteps, compare_bounds
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.variable_match import ReadArray, VariableMatch
from common.diagnose.rounding import MACHINE_EPSILON
from common.map.array_differences import relative_difference

SAME_SHARE = 0.1  # largest difference of two weights, as a share of their change, if both scripts change them alike
AVERAGE_SHARE = 0.02  # largest difference between a change and that of an average, as a share of the change
COPY_SHARE = 1e-3  # largest difference from 1 of the share of the way that a copy moves
SMALLEST_CHANGE = 1e-5  # relative difference of weights that a script changes by more than rounding
MIN_ROUNDINGS = 4  # number of rounding errors of the weights that a change must exceed


class Average(NamedTuple):
    """An average that a script computes: it moves weights a share of the way to other weights.

    Attributes:
        source: The title of the other weights.
        share: The share of the way.
        error: The error of the share that rounding causes.
        is_before: Whether the other weights are those before the update of the step.
    """

    source: str
    share: float
    error: float
    is_before: bool


def compare_changed_weights(stage: Stage, pair: RecordPair, bounds: Mapping[str, BoundsOfSteps]) -> None:
    """Add the first cause for weights that the scripts change differently between two updates.

    Args:
        stage: The stage that gets the cause.
        pair: The records.
        bounds: By side, the bounds to which the updates themselves clip the weights.
    """
    for step in pair.steps[1:]:
        clipped = {*compare_bounds(stage, pair, step - 1, bounds)}
        changed = [*list_changed_matches(pair, step), *_list_moved_without_gradient(pair, step)]
        changed = [match for match in changed if match.title not in clipped]
        differing = [match for match in changed if not _are_changed_alike(pair, match, step)]
        averages = {match.title: _find_averages(pair, match, step) for match in differing}
        others = [match for match in differing if not any(averages[match.title])]
        averaged = [match for match in differing if any(averages[match.title])]
        averaged = [match for match in averaged if not _are_equal(*averages[match.title])]
        if averaged:
            title = averaged[0].title
            stage.add_mismatch(f"step {step}: {title}")
            sentence = _compare_averages(pair, averaged[0], *averages[title])
            more = f" ({len(averaged) - 1} more differ in this way)" if len(averaged) > 1 else ""
            stage.add_cause("averaged_weights", "b", title, f"{sentence}{more}")
            return
        for side, names in _name_changed(pair, others, step):
            if _may_change_within_step(pair, side):
                continue
            name = side.name.upper()
            stage.add_mismatch(f"{name}, step {step}: {names[0]}")
            words = names[0] if len(names) == 1 else f"{len(names)} parameters, such as {names[0]},"
            sentence = f"in {name}, the script changes {words} between the updates of steps {step - 1} and {step}: "
            sentence += "averaged weights left in the model, or a checkpoint loaded?"
            stage.add_cause("weights_changed", side.name, names[0], sentence)
        if others:
            return


def list_changed_matches(pair: RecordPair, step: int) -> list[VariableMatch]:
    """Return the variables that one of the scripts changes between an update and the update of the step before.

    Any other forward pass, such as of a GAN's generator for its discriminator, changes moving statistics.
    """
    changed_a, changed_b = ({*side.list_changed(step)} for side in pair.sides)
    changed = [x for x in pair.models.variables if changed_a & {*x.names_a} or changed_b & {*x.names_b}]
    return [x for x in changed if not is_moving_statistic(x.title)]


def _list_moved_without_gradient(pair: RecordPair, step: int) -> list[VariableMatch]:
    """Return the variables that the scripts change only within the step before a step, and not by an optimizer.

    If only one script records a gradient of a variable, the other one may have an optimizer that is not recorded.
    """
    changed = {match.title for match in list_changed_matches(pair, step)}
    gradients_a, gradients_b = (side.gradients.read(step - 1) for side in pair.sides)
    before, after = pair.a.read_before(step - 1), pair.a.read_before(step)
    moved = []
    for match in pair.models.variables:
        gradients = match.read_a(gradients_a, is_gradient=True), match.read_b(gradients_b, is_gradient=True)
        has_gradient = any(gradient is not None and gradient.any() for gradient in gradients)
        if has_gradient or match.title in changed or is_moving_statistic(match.title):
            continue
        start, end = _read(match.read_a, before), _read(match.read_a, after)
        if start is not None and end is not None and (start != end).any():
            moved.append(match)
    return moved


def _may_change_within_step(pair: RecordPair, side: RecordedSide) -> bool:
    """Check whether the other script may change the same weights as a side's within its steps, as in a `train_step`.

    That is not known if the weights differ for another reason.
    """
    (other,) = [x for x in pair.sides if x is not side]
    return not other.is_torch and pair.has_difference("activations", "loss", "gradients")


def _name_changed(
    pair: RecordPair, matches: list[VariableMatch], step: int
) -> Iterator[tuple[RecordedSide, list[str]]]:
    """Yield each side whose script changes some of the variables, with their names."""
    for side in pair.sides:
        changed = {*side.list_changed(step)}
        names = [name for x in matches for name in (x.names_a if side is pair.a else x.names_b) if name in changed]
        if names and _exceed_rounding(side, names, step):
            yield side, names


def _exceed_rounding(side: RecordedSide, names: Sequence[str], step: int) -> bool:
    """Check whether a script changes weights by more than rounding, as if it adds to them and subtracts that again."""
    weights = [(side.read_weights(step - 1).get(name), side.read_before(step).get(name)) for name in names]
    pairs = [(start, end) for start, end in weights if start is not None and end is not None]
    is_unknown = side.has_unknown_weights(step, names) or len(pairs) < len(names)
    return is_unknown or any(relative_difference(*pair) > SMALLEST_CHANGE for pair in pairs)


def _are_changed_alike(pair: RecordPair, match: VariableMatch, step: int) -> bool:
    """Check whether the weights before the update of a step are equal, beside the change by the scripts."""
    pairs = []
    for side, read, names in ((pair.a, match.read_a, match.names_a), (pair.b, match.read_b, match.names_b)):
        if side.has_unknown_weights(step, names):
            return False
        after_update, end = _read(read, side.read_weights(step - 1)), _read(read, side.read_before(step))
        if after_update is None or end is None:
            return False
        pairs.append((after_update, end))
    ends = [end for _, end in pairs]
    if ends[0].shape != ends[1].shape:
        return False
    change = max(float(np.linalg.norm(end - after_update)) for after_update, end in pairs)
    rounding = MIN_ROUNDINGS * MACHINE_EPSILON["float32"] * float(np.linalg.norm(ends[0]))
    return float(np.linalg.norm(ends[0] - ends[1])) <= SAME_SHARE * change + rounding


def _find_averages(pair: RecordPair, match: VariableMatch, step: int) -> tuple[Average | None, Average | None]:
    """Return how A's and B's scripts average a variable between the updates of the step before and of a step."""
    average_a = _find_average(pair, pair.a, match.title, step)
    return average_a, _find_average(pair, pair.b, match.title, step)


def _find_average(pair: RecordPair, side: RecordedSide, title: str, step: int) -> Average | None:
    """Return the average of another variable that explains how a variable moves; None if none does."""
    reads = {x.title: x.read_a if side is pair.a else x.read_b for x in pair.models.variables}
    if reads[title](side.gradients.read(step - 1), is_gradient=True) is not None:
        return None  # the optimizer moves it, too
    start, end = (_read(reads[title], side.read_before(number)) for number in (step - 1, step))
    if start is None or end is None:
        return None
    moved, best = end - start, None
    rounding = MACHINE_EPSILON["float32"] * float(np.linalg.norm(start))
    smallest = AVERAGE_SHARE * float(np.linalg.norm(moved)) + rounding
    if float(np.linalg.norm(moved)) <= MIN_ROUNDINGS * rounding:
        return None
    for is_before, weights in ((False, side.read_weights(step - 1)), (True, side.read_before(step - 1))):
        for source, read in reads.items():
            target = _read(read, weights)
            if source == title or target is None or target.shape != start.shape or not (target != start).any():
                continue
            way = target - start
            share = float(np.vdot(moved, way) / np.vdot(way, way))
            source_start = _read(read, side.read_before(step - 1))
            if abs(share - 1) <= COPY_SHARE and source_start is not None and np.array_equal(start, source_start):
                continue  # both move alike, as variables that receive the same gradients
            remainder = float(np.linalg.norm(moved - share * way))
            if remainder < smallest and share > 0:
                smallest = remainder
                best = Average(source, share, rounding / float(np.linalg.norm(way)), is_before)
    return best


def _are_equal(a: Average | None, b: Average | None) -> bool:
    """Check whether both scripts average the same weights in the same way."""
    if a is None or b is None or (a.source, a.is_before) != (b.source, b.is_before):
        return False
    return abs(a.share - b.share) <= AVERAGE_SHARE * min(a.share, b.share) + a.error + b.error


def _compare_averages(pair: RecordPair, match: VariableMatch, a: Average | None, b: Average | None) -> str:
    """Return a sentence about a variable that A's and B's scripts do not average in the same way."""
    if a is not None and b is not None:
        return f"the script of A moves {match.title} {_describe(a)} after a step, and that of B {_describe(b)}"
    average, name, other, read = (a, "A", pair.b, match.read_b) if a is not None else (b, "B", pair.a, match.read_a)
    assert average is not None
    start, end = (_read(read, other.read_before(step)) for step in pair.steps[:2])
    moves = start is not None and end is not None and bool((start != end).any())
    sentence = f"the script of {name} moves {match.title} {_describe(average)} after a step"
    return f"{sentence}, and that of {other.name.upper()} {'moves it in another way' if moves else 'does not move it'}"


def _describe(average: Average) -> str:
    when = " before the update" if average.is_before else ""
    return f"{average.share:.3g} of the way to {average.source}{when}"


def _read(read: ReadArray, weights: dict[str, np.ndarray]) -> np.ndarray | None:
    array = read(weights)
    return None if array is None or array.dtype.kind != "f" else array.astype(np.float64)
