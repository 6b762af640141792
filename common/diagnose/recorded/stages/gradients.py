"""The stage "gradients": the gradients of each step, after the reduction over the processes and before clipping.

A is the reference record of a diagnosis, and B the record that is compared with it. The noise of a tensor is the
difference that rounding alone causes in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from common.diagnose.explain.gradient_difference import explain_gradient
from common.diagnose.findings import Explanation, Stage
from common.diagnose.recorded.carried_states import explain_states
from common.diagnose.recorded.clipping import list_clipped_rows
from common.diagnose.recorded.operations.stopped_gradients import explain_stopped_gradients
from common.diagnose.recorded.operations.weight_uses import explain_weight_uses
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.stages.gradient_factors import (
    LEAST_ELEMENTS,
    TOLERANCE,
    explain_factor,
    explain_unequal_batches,
    list_titles,
)
from common.diagnose.recorded.update_directions import read_directions
from common.diagnose.rounding import is_close, rounding_tolerance
from common.map.array_differences import relative_difference

# The norm of a smaller gradient counts as this share of the norm of the step's largest gradient. The gradient of a bias
# before BatchNorm, for example, holds only rounding errors.
SMALL_GRADIENT_SHARE = {"float64": 1e-4, "float32": 1e-2, "bfloat16": 0.1}
ONLY_ROUNDING = 1e-3  # a gradient below this share of that norm has rounding errors of the terms of larger gradients
# Noise of later gradients: a rounding error of a weight moves elements over the kinks of activations such as ReLU
LATER_NOISE = 1e-4
# Noise of a later gradient as a multiple of the difference of the moves of the weights before, its largest value, and
# the largest difference of moves that such elements may cause: scripts with other updates have a larger one
MOVE_NOISE, LARGEST_MOVE_NOISE, LARGEST_MOVES = 0.3, 4e-3, 0.05
# Noise of gradients if a number before such an activation has another sign in the first step
SIGN_NOISE = 1e-3
GRADIENT_NOISE = 4.0  # noise of a gradient as a multiple of the noise of the activations from which it is computed
USUAL_SHARE = 0.2  # the noise of a gradient as a share of the median difference of the gradients, if most are equal
LARGEST_TOLERANCE = 0.1  # the same if the weights differ: with 1, any gradient would be close to any other
# Part of the earlier gradients that a side adds, and the share of the difference that then remains, if it adds them
SMALLEST_PART, LARGEST_PART, PART_SHARE = 0.01, 1.1, 0.2
Arrays = Mapping[str, np.ndarray]


def compare_gradients(pair: RecordPair) -> Stage:
    """Compare the gradients of the steps with the same examples, up to the first step that differs."""
    stage = Stage("gradients", precision=pair.precision)
    if reason := pair.why_steps_differ or pair.why_outputs_differ:
        stage.omit(reason)
        return stage
    may_begin_here = not pair.has_difference("activations", "loss")
    causes = pair.get_stage("hyperparameters").causes
    # Other hyperparameters move the weights apart after the first step
    has_other_settings = bool(causes) or bool(list_clipped_rows(pair))
    may_begin_here = may_begin_here and not any(cause.tensor == "loss" for cause in causes)
    for step in pair.equal_steps:
        if any(side.get_facts(step)["skipped"] for side in pair.sides):
            continue  # a gradient scaler skipped the step, because its gradients overflowed
        may_begin_here = may_begin_here and not (has_other_settings and step > pair.equal_steps[0])
        differing = _compare_step(stage, pair, step, may_begin_here)
        if differing and may_begin_here:
            _explain(stage, pair, step, differing)
        elif _may_add_clipped(pair, step) and (added := _find_added(pair, step)) is not None:
            stage.add_mismatch(f"step {step}: gradients")
            stage.add_explanation("gradients", added, prefix=f"step {step}: ")
            break
        if differing:
            break
    if sampled := pair.name_sampled("gradient", *pair.equal_steps):
        stage.omit(f"the gradient of {sampled} is recorded as a sample only: raise max_bytes= of the recorders")
    elif not stage.checks:
        stage.omit("no gradients are recorded, or every update was skipped")
    return stage


def read_paired_gradients(
    pair: RecordPair, step: int, are_clipped: bool = False
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the gradients of both sides in the common layout, by the title of the variable.

    They are those before the scripts changed them, or the directions of the updates if these are equal.

    Args:
        pair: The records.
        step: The step.
        are_clipped: Whether to return the gradients that the optimizers received, not the gradients before clipping.
    """
    if pair.compares_directions:
        return read_directions(pair, step)
    gradients_a, gradients_b = (
        side.gradients.read(step) if are_clipped else side.gradients.read_reduced(step) for side in pair.sides
    )
    pairs = {}
    for match in pair.models.variables:
        a, b = match.read_a(gradients_a, is_gradient=True), match.read_b(gradients_b, is_gradient=True)
        if a is None and b is not None and gradients_a and _may_lack_gradient(pair.a, match.names_a, step):
            a = np.zeros_like(b)
        elif b is None and a is not None and gradients_b and _may_lack_gradient(pair.b, match.names_b, step):
            b = np.zeros_like(a)
        if a is not None and b is not None and a.shape == b.shape:
            pairs[match.title] = a.astype(np.float64), b.astype(np.float64)
    return pairs


def _may_lack_gradient(side: RecordedSide, names: Sequence[str], step: int) -> bool:
    """Check whether an optimizer would update variables, but receives no gradient of any of them."""
    optimizer = side.optimizer
    if optimizer is None or not side.trainable.issuperset(names):
        return False
    if not {*names}.isdisjoint([*optimizer["missing"], *optimizer["frozen"]]):
        return False
    return {f"gradient/{name}" for name in names}.isdisjoint(side.record.ranks[0].open_step(step).names)


def _compare_step(
    stage: Stage, pair: RecordPair, step: int, may_begin_here: bool
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Compare the gradients of a step. Return the pairs of gradients that differ."""
    gradients, differing = read_paired_gradients(pair, step), {}
    largest = max((float(np.linalg.norm(a)) for a, _ in gradients.values()), default=0.0)
    smallest = SMALL_GRADIENT_SHARE[pair.precision] * largest
    noise = max(GRADIENT_NOISE * pair.noise, pair.measure_weight_difference(step - 1))
    is_first = step == pair.equal_steps[0]
    if not is_first and pair.precision != "float64":
        moves = _measure_moves(pair, step)
        noise = max(noise, LATER_NOISE, min(MOVE_NOISE * moves, LARGEST_MOVE_NOISE) if moves < LARGEST_MOVES else 0.0)
    earlier = {} if is_first else read_paired_gradients(pair, pair.equal_steps[pair.equal_steps.index(step) - 1])
    # A gradient sums terms of both signs, so its small elements may be rounding errors of large terms. A gradient that
    # was recovered from slots also has the rounding errors of earlier gradients.
    norms = {
        title: max(smallest, *(float(np.linalg.norm(x)) for x in (a, *earlier.get(title, ())[:1])))
        for title, (a, _) in gradients.items()
    }
    for title, both in gradients.items():
        if max(map(np.linalg.norm, both)) < ONLY_ROUNDING * smallest:
            norms[title] = largest
    # Terms that cancel in the gradients of the outputs, such as those of normalized vectors, show in most gradients
    usual = np.median([relative_difference(*gradients[title], min_norm=norm) for title, norm in norms.items()] or [0])
    if usual <= rounding_tolerance(noise, pair.precision):
        noise = max(noise, USUAL_SHARE * float(usual))
    near_kinks = _list_before_kinks(pair)
    for title, (a, b) in gradients.items():
        noise_here = max(noise, SIGN_NOISE) if title in near_kinks else noise
        check = stage.compare_arrays(
            f"step {step}: {title}", a, b, noise_here, may_begin_here=may_begin_here, min_norm=norms[title]
        )
        if check.differs:
            differing[title] = a, b
    return differing


def _list_before_kinks(pair: RecordPair) -> set[str]:
    """Return the titles of the variables from which numbers are computed whose signs differ by rounding."""
    owners = {name: index for index, layer in enumerate(pair.a.layers) for name in layer["variables"].values()}
    last = max((index for index, layer in enumerate(pair.a.layers) if layer["path"] in pair.changed_signs), default=-1)
    return {match.title for match in pair.models.variables if owners.get(match.names_a[0], last) <= last}


def _explain(stage: Stage, pair: RecordPair, step: int, differing: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Add one cause that explains all gradients that differ. If there is none, add a cause for each of them."""
    states = explain_states(pair.a, pair.b, step) if step != pair.equal_steps[0] else None
    if states is not None and states.confirmed:
        stage.add_explanation(next(iter(differing)), states)
        return
    count = len(read_paired_gradients(pair, step))
    explanation = (
        explain_factor(pair, step, differing, count)
        or _explain_earlier(pair, step, differing)
        or explain_unequal_batches(pair, step)
    )
    if explanation:
        stage.add_explanation(next(iter(differing)), explanation, prefix=f"step {step}: ")
        return
    if step == pair.equal_steps[0] and (lost := _explain_lost(pair, differing)) is not None:
        stage.add_explanation(next(iter(differing)), lost, prefix=f"step {step}: ")
        return
    if step == pair.equal_steps[0] or (len(differing) < count and not _have_other_updates(pair, step)):
        for title, (a, b) in differing.items():
            explanation = _explain_gradient(pair, title, a, b)
            if explanation is not None:
                stage.add_explanation(title, explanation, prefix=f"step {step}: {title}: ")
    if not stage.causes and states is not None:
        stage.add_explanation(next(iter(differing)), states)
    if not stage.causes and step == pair.equal_steps[0] and (stopped := explain_stopped_gradients(pair)):
        stage.add_explanation(next(iter(differing)), stopped, prefix=f"step {step}: ")
    if not stage.causes and not _have_other_updates(pair, step):
        count = len(differing)
        sentence = f"step {step}: {count} gradient{'s differ' if count > 1 else ' differs'} though the loss is the "
        sentence += f"same: {list_titles([*differing])}"
        stage.add_cause("gradient", "b", next(iter(differing)), sentence, confirmed=False)


def _explain_gradient(pair: RecordPair, title: str, a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Explain a gradient that differs though the loss is the same; return None if nothing certain explains it."""
    explanation = explain_gradient(a, b, TOLERANCE)
    if not explanation.confirmed or (explanation.cause == "scaled_gradient" and a.size < LEAST_ELEMENTS):
        return explain_weight_uses(pair, title)
    is_small = relative_difference(a, b, min_norm=float(np.linalg.norm(a))) < 10 * TOLERANCE
    return None if is_small else explanation


def _explain_lost(pair: RecordPair, differing: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Explanation | None:
    """Name the operation through which one script computes no gradient, if all gradients that differ are zero there."""
    zero_sides = [{name for name, x in zip("ab", both, strict=True) if not x.any()} for both in differing.values()]
    stopped = explain_stopped_gradients(pair) if all(zero_sides) else None
    if stopped is None or any(stopped.side not in sides for sides in zero_sides):
        return None
    return replace(stopped, sentence=f"{stopped.sentence}: {list_titles([*differing])} get none", confirmed=True)


def _have_other_updates(pair: RecordPair, step: int) -> bool:
    """Check whether the weights moved differently before a step. The stages "optimizer" and "state" explain that."""
    return _measure_moves(pair, step) > TOLERANCE


def _measure_moves(pair: RecordPair, step: int) -> float:
    """Return the relative difference of all moves of the trained weights between the first step and a step."""
    moves: list[np.ndarray] = []
    if step == pair.equal_steps[0]:
        return 0.0
    for index, side in enumerate(pair.sides):
        before, after = side.read_weights(pair.equal_steps[0] - 1), side.read_weights(step - 1)
        read = [match.read_b if index else match.read_a for match in pair.list_trained()]
        changes = [(old, new) for get in read if (old := get(before)) is not None and (new := get(after)) is not None]
        moves.append(np.concatenate([np.ravel(new.astype(np.float64) - old) for old, new in changes] or [np.zeros(0)]))
    return relative_difference(moves[0], moves[1]) if moves[0].shape == moves[1].shape else 0.0


def _may_add_clipped(pair: RecordPair, step: int) -> bool:
    """Check whether a step follows a clipping, which changes PyTorch's gradients in place."""
    return step != pair.equal_steps[0] and any(side.get_facts(step - 1)["max_norm"] for side in pair.sides)


def _find_added(pair: RecordPair, step: int) -> Explanation | None:
    """Check whether a side adds a part of the gradients of the previous step, which its clipping has made small.

    The part is that which fits best, beside the other side's gradients of the step, whose weights may be a little other
    ones.
    """
    current, earlier = read_paired_gradients(pair, step), read_paired_gradients(pair, step - 1)
    for side, index in (("b", 1), ("a", 0)):
        products = np.zeros((3, 3))  # of the side's gradients, the other side's, and the side's earlier ones
        for title in (title for title in current if title in earlier):
            arrays = current[title][index], current[title][1 - index], earlier[title][index]
            flat = [np.ravel(array).astype(np.float64) for array in arrays]
            products += [[x @ y for y in flat] for x in flat]
        with_target, among = products[1:, 0], products[1:, 1:]
        if np.linalg.det(among) <= 0:
            continue
        alone, (scale, part) = with_target[0] / among[0, 0], np.linalg.solve(among, with_target)
        remaining = [
            products[0, 0] - 2 * factors @ with_target + factors @ among @ factors
            for factors in (np.array([alone, 0.0]), np.array([scale, part]))
        ]
        if SMALLEST_PART < part < LARGEST_PART and remaining[1] < PART_SHARE**2 * remaining[0]:
            sentence = f"{side.upper()} adds {part:.3g} times the gradients of step {step - 1}: zero_grad is missing"
            return Explanation("zero_grad_missing", sentence, side=side)
    return None


def _explain_earlier(
    pair: RecordPair, step: int, differing: dict[str, tuple[np.ndarray, np.ndarray]]
) -> Explanation | None:
    """Check whether a side uses the gradients of the previous step, or adds them to the gradients of this step."""
    if step == pair.equal_steps[0]:
        return None
    # What zero_grad leaves are the clipped gradients, because clipping changes them in place
    earlier = read_paired_gradients(pair, step - 1, are_clipped=True)
    names = [title for title in differing if title in earlier]
    current, before = ([np.concatenate([np.ravel(source[title][side]) for title in names]) for side in (0, 1)]
                       for source in (differing, earlier))  # fmt: skip
    # Weights that have moved in another way, as with two biases in place of one, change the gradients too
    noise = GRADIENT_NOISE * pair.measure_weight_difference(step - 1)
    tolerance = min(max(TOLERANCE, noise), LARGEST_TOLERANCE)
    for side, index, other_index in (("b", 1, 0), ("a", 0, 1)):
        if is_close(current[other_index] + before[index], current[index], tolerance):
            sentence = f"{side.upper()} adds the gradients of step {step - 1}: zero_grad is missing"
            return Explanation("zero_grad_missing", sentence, side=side)
        if is_close(before[index], current[index], TOLERANCE):
            return Explanation("stale_gradient", f"{side.upper()} uses the gradients of step {step - 1}", side=side)
    return None
