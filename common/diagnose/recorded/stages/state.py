"""The stage "state": the variables after each step.

A is the reference record of a diagnosis, and B the record that is compared with it. A weight moves by its gradient, its
slots (the optimizer's arrays) and the hyperparameters. If these are equal on both sides, and the stage "optimizer"
reproduces both updates, the remaining difference comes from rounding. Elements whose gradients differ are not compared.
"""

import math
from collections.abc import Collection, Iterator

import numpy as np

from common.diagnose.explain.moving_statistics import (
    MOMENTA,
    FirstStep,
    find_momentum_factors,
    find_variance_divisor,
    is_moving_statistic,
    name_moving_variance,
)
from common.diagnose.findings import EQUAL, FRAMEWORK_CAUSES, Stage, TensorCheck
from common.diagnose.layer_match import LayerMatch
from common.diagnose.recorded.added_variables import find_added_variables
from common.diagnose.recorded.operations.weight_uses import describe_shared_weights
from common.diagnose.recorded.optimizer_settings import read_optimizer_settings
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.rule_comparison import list_place_effects
from common.diagnose.recorded.stages.hyperparameters import NOT_TRAINED
from common.diagnose.recorded.training_modes import EVALUATION_MODE
from common.diagnose.recorded.variable_match import VariableMatch
from common.diagnose.recorded.weights_between_updates import list_changed_matches
from common.map.array_differences import compute_norm

# Two elements of gradients count as equal if they differ by less than this share of A's element ...
ELEMENT_SHARE = 1e-2
# ... plus this share of the element's largest earlier gradient. A gradient that was recovered from slots has rounding
# errors of this size, even if it is 0.
EARLIER_SHARE = 1e-5
# A trained variable whose norm is below this share of the largest move has gradients of rounding errors only
ONLY_ROUNDING = 1e-5
STEP_NOISE = 2.0**-23  # rounding error of the weights of one step, relative to their norm
# Relative noise of weights whose updates both follow from the formula: Adam moves an element whose gradient holds only
# rounding errors at random
RANDOM_MOVE_NOISE = 1e-4
# Relative noise of the moves of weights whose optimizer a record does not describe, such as its place of the epsilon
MOVE_NOISE = 4e-3


def compare_states(pair: RecordPair) -> Stage:
    """Compare the variables after each step with the same examples."""
    stage = Stage("state", precision="float64" if pair.precision == "float64" else "float32")
    if reason := pair.why_steps_differ or pair.why_outputs_differ:
        stage.omit(reason)
        return stage
    earlier = ("activations", "loss", "gradients", "reduction", "optimizer")
    # A difference explains the weights from its step on
    first_difference = 0 if pair.get_stage("hyperparameters").causes else pair.find_first_difference(*earlier)
    updates_are_computed = pair.get_stage("optimizer").verdict == EQUAL and not pair.get_stage("optimizer").note
    first_steps = []
    place_effects = list_place_effects(pair)
    changed = {match.title for step in pair.steps[1:] for match in list_changed_matches(pair, step)}
    compared: dict[str, np.ndarray | None] = {}  # the elements to compare, by title
    largest: dict[str, np.ndarray] = {}
    undescribed = _list_undescribed(pair)
    for step in pair.equal_steps:
        _update_compared(compared, largest, pair, step)
        largest_move = max(_list_moves(pair, step), default=0.0)
        for match in pair.models.variables:
            before, a, b = match.read_a(pair.a.read_before(step)), *_read_after(pair, match, step, changed)
            moved_further = match.read_b(place_effects.get(step, {}))
            if before is None or a is None or b is None or a.shape != b.shape or a.dtype.kind != "f":
                continue
            b = b if moved_further is None else b + moved_further
            is_compared = compared.get(match.title)
            if is_compared is not None and is_compared.shape == a.shape:
                b = np.where(is_compared, b, a)
            if step == pair.equal_steps[0]:
                first_steps.append(FirstStep(match.title, *(x.astype(np.float64) for x in (before, a, b))))
            follows_formula = updates_are_computed and pair.a.trainable.issuperset(match.names_a)
            follows_formula = follows_formula and step < first_difference
            earlier_noise = max(STEP_NOISE * step, pair.noise, pair.measure_weight_difference(step - 1))
            noise = max(RANDOM_MOVE_NOISE, earlier_noise) if follows_formula else earlier_noise
            norm = max(*(float(np.linalg.norm(x)) for x in (a, a - before)), _get_deviation(pair, match, step))
            norm = norm if norm > ONLY_ROUNDING * largest_move else largest_move
            if match.title in undescribed and (before_b := match.read_b(pair.b.read_before(step))) is not None:
                a, b, noise, norm = a - before, b - before_b, MOVE_NOISE, 0.0
            tensor = f"step {step}: {match.title}"
            stage.compare_arrays(tensor, a, b, noise, may_begin_here=step < first_difference, min_norm=norm)
    _note_omission(stage, pair)
    names = {cause.cause for cause in pair.get_stage("hyperparameters").causes}
    # If activations differ, the moving statistics of later layers differ, too
    if EVALUATION_MODE not in names and not pair.has_difference("activations"):
        is_frozen = NOT_TRAINED in names
        _explain(stage, pair, first_steps, pair.equal_steps[0] < first_difference, is_frozen)
    return stage


def _list_moves(pair: RecordPair, step: int) -> Iterator[float]:
    """Yield the norms of the moves of A's trained variables in a step, as far as they are known."""
    for match in pair.list_trained():
        before, after = match.read_a(pair.a.read_before(step)), match.read_a(pair.a.read_weights(step))
        if before is not None and after is not None and before.shape == after.shape:
            yield float(np.linalg.norm(after.astype(np.float64) - before))


def _list_undescribed(pair: RecordPair) -> set[str]:
    """Return the titles of the variables that other optimizers update than the one that a record describes."""
    described = [read_optimizer_settings(side).keys() for side in pair.sides]
    return {
        match.title
        for match in pair.list_trained()
        if all(described) and not (described[0] >= {*match.names_a} and described[1] >= {*match.names_b})
    }


def _read_after(
    pair: RecordPair, match: VariableMatch, step: int, changed: Collection[str]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return a variable of A and of B after a step. changed: the titles of what scripts change between updates.

    Those are read before the next update: one script may change them within the step, and the other after it.
    """
    if match.title not in changed:
        return match.read_a(pair.a.read_weights(step)), match.read_b(pair.b.read_weights(step))
    if step == pair.steps[-1]:
        return None, None
    return match.read_a(pair.a.read_before(step + 1)), match.read_b(pair.b.read_before(step + 1))


def _note_omission(stage: Stage, pair: RecordPair) -> None:
    """Note that weights were not compared, because a record lacks them or has only samples of them."""
    if sampled := pair.name_sampled("weight", *pair.equal_steps):
        stage.omit(f"{sampled} is recorded as a sample only: raise max_bytes= of the recorders")
    elif not stage.checks:
        stage.omit("no weights are recorded after an update")


def _get_deviation(pair: RecordPair, match: VariableMatch, step: int) -> float:
    """Return the norm of the standard deviations that belong to a moving mean; 0 for other variables.

    The difference of a moving mean is measured relative to it.
    """
    weights = pair.a.read_weights(step)
    variance = next((weights.get(name_moving_variance(name)) for name in match.names_a if "mean" in name), None)
    return 0.0 if variance is None else float(np.linalg.norm(np.sqrt(np.abs(variance.astype(np.float64)))))


def _update_compared(
    compared: dict[str, np.ndarray | None], largest: dict[str, np.ndarray], pair: RecordPair, step: int
) -> None:
    """Update which elements had equal gradients in all steps so far. Only these elements are compared.

    Adam moves the others at random, because it divides a gradient that holds only rounding errors by its own size. The
    bias of an attention's keys has such gradients, for example. Equal elements of a gradient that holds nothing else
    are equal by chance.

    Args:
        compared: Whether each element is compared, by the title of the variable; None if a gradient is missing.
        largest: The largest absolute values of A's gradients in the steps before, by the title of the variable.
        pair: The records.
        step: The step.
    """
    if any(side.get_facts(step)["skipped"] for side in pair.sides):
        return  # a gradient scaler skipped the step, because its gradients overflowed
    gradients_a, gradients_b = (side.gradients.read_reduced(step) for side in pair.sides)
    smallest = STEP_NOISE * max(filter(np.isfinite, map(compute_norm, gradients_a.values())), default=0.0)
    for match in pair.models.variables:
        a, b = match.read_a(gradients_a, is_gradient=True), match.read_b(gradients_b, is_gradient=True)
        if a is None or b is None or a.shape != b.shape:
            compared[match.title] = None
            continue
        earlier_size = largest.get(match.title, np.zeros(a.shape))
        is_equal = np.abs(a.astype(np.float64) - b) <= ELEMENT_SHARE * np.abs(a) + EARLIER_SHARE * earlier_size
        is_small = (np.maximum(np.abs(a), np.abs(b)) < smallest) & ((a != 0) | (b != 0)) & (earlier_size < smallest)
        if compute_norm(np.where(is_small, a.astype(np.float64) - b, 0)) > ELEMENT_SHARE * compute_norm(a[is_small]):
            is_equal &= ~is_small
        largest[match.title] = np.maximum(earlier_size, np.abs(a))
        earlier = compared.get(match.title, is_equal)
        compared[match.title] = None if earlier is None else earlier & is_equal


def _explain(
    stage: Stage, pair: RecordPair, first_steps: list[FirstStep], may_begin_here: bool, is_frozen: bool
) -> None:
    """Add a cause that explains why moving statistics differ, or otherwise the first other variable that differs.

    Args:
        stage: The stage.
        pair: The two records.
        first_steps: The variables before and after the first step.
        may_begin_here: Whether no earlier stage differs in the first step.
        is_frozen: Whether one side froze layers.
    """
    precision = stage.precision
    factors = find_momentum_factors([x for x in first_steps if is_moving_statistic(x.name)], precision)
    for name, factor in list(factors.items())[:1]:
        if is_frozen and not round(factor, 6):
            return  # Keras's BatchNormalization is in inference mode if it is frozen
        shared = describe_shared_weights(pair, "b") or describe_shared_weights(pair, "a")
        reason = shared or "compare momentum (Keras's is 1 - PyTorch's)"
        sentence = f"in B {name} moves {factor:.4g} times as far: {reason}"
        stage.add_cause("moving_statistics", "b", name, sentence)
        return
    passes = {_count_passes(side, pair.equal_steps[0]) for side in pair.sides}
    momenta = {*MOMENTA, *(momentum for match in pair.models.layers for momentum in _list_momenta(match))}
    # A large n matters only if the statistics differ
    differs = any(check.differs for check in stage.checks)
    counts = {count for side in pair.sides for count in _count_elements(side)} if differs else set()
    if len(passes) == 1 and (divisor := find_variance_divisor(first_steps, precision, passes.pop(), momenta, counts)):
        sentence = f"in B {divisor.name} moves towards {divisor.factor:.6g} times A's variance: one divides by n - 1"
        stage.add_cause("biased_variance", "b", divisor.name, sentence)
        # The weights of later steps inherit nothing from it, but statistics differ again in each step
        first_steps = [first for first in first_steps if not is_moving_statistic(first.name)]
    checks = [] if stage.causes else [check for check in stage.checks if check.begins_here]
    may_explain = may_begin_here or _only_frameworks_differ(pair)
    if may_explain and (added := find_added_variables(pair.models.variables, first_steps)).sentences:
        # A first step is often small beside the weights, so that their difference would count as rounding
        title = next(iter(added.sentences))
        stage.add_mismatch(f"step {pair.equal_steps[0]}: {title}")
        stage.add_cause("added_variables", "b", title, added.sentences[title])
        names = [] if added.moves_all else [first.name for first in first_steps if first.name not in added.sentences]
        first_tensors = {f"step {pair.equal_steps[0]}: {name}" for name in names}
        checks = [check for check in checks if check.tensor in first_tensors]  # later steps inherit the difference
    if checks:
        sentence = f"{checks[0].tensor} differs by {checks[0].difference:.1e}, and no earlier stage explains that"
        stage.add_cause("unexplained", "b", checks[0].tensor, sentence, confirmed=False)


def _only_frameworks_differ(pair: RecordPair) -> bool:
    """Check whether all causes so far are differences between the optimizers of the two frameworks."""
    causes = {cause.cause for stage in pair.stages for cause in stage.causes}
    return bool(causes) and causes.issubset(FRAMEWORK_CAUSES)


def _list_momenta(match: LayerMatch) -> list[float]:
    """Return the momenta of two layers of BatchNorm as PyTorch defines them; none of other layers."""
    values = [settings.get("momentum") for settings in (match.settings_a, match.settings_b)]
    return [float(value) for value in values if isinstance(value, int | float)]


def _count_elements(side: RecordedSide) -> set[int]:
    """Return how many elements the inputs of layers have for each channel, whether channels are second or last."""
    trace = side.record.ranks[0].operations
    names = trace["names"].items() if trace is not None else ()
    inputs = [number for name, number in names if name.startswith("layer/") and name.endswith("/input")]
    shapes = [trace["tensors"][number]["shape"] for number in inputs] if trace is not None else []
    return {math.prod(shape) // size for shape in shapes if len(shape) > 1 for size in (shape[1], shape[-1]) if size}


def _count_passes(side: RecordedSide, step: int) -> int:
    """Return the number of recorded forward passes of the first process in a step."""
    return sum(
        len(side.batches.count_rows(step, rank, number))
        for rank, number in side.batches.list_micro_batches(step)
        if rank == 0
    )


def _get_title(check: TensorCheck) -> str:
    """Return the title of the variable of a check, whose tensor is, for example, "step 1: fc.weight"."""
    return check.tensor.partition(": ")[2]
