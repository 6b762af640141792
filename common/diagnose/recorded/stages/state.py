"""The stage "state": the variables after each step.

A step moves a weight by what its gradient, its slots and the hyperparameters say. If these are equal on both sides, and
the stage "optimizer" reproduces both updates, the difference that remains is inherited from rounding.
"""

import numpy as np

from common.diagnose.explain.moving_statistics import (
    FirstStep,
    find_momentum_factors,
    find_variance_divisor,
    is_moving_statistic,
    name_moving_variance,
)
from common.diagnose.findings import EQUAL, Stage
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.stages.hyperparameters import EVALUATION_MODE, NOT_TRAINED
from common.diagnose.recorded.variable_pairs import VariableMatch

FOLLOWING_SHARE = 1e-2  # largest relative difference of two elements of gradients that count as equal
# The same relative to earlier gradients of the element: one that follows from the slots of two steps has their rounding
# errors, also if it is 0, and its effect on the update is as small
EARLIER_SHARE = 1e-5
STEP_NOISE = 2.0**-23
FOLLOWING_NOISE = 1e-4  # relative; Adam moves an element that has only rounding errors as its gradient at random


def compare_states(pair: RecordPair) -> Stage:
    """Compare the variables after each step with the same examples."""
    stage = Stage("state", precision="float64" if pair.precision == "float64" else "float32")
    if not pair.equal_steps or pair.has_difference("initial weights"):
        stage.note = f"not compared: the {'initial weights' if pair.equal_steps else 'examples'} differ"
        return stage
    if pair.why_outputs_differ:
        stage.note = f"not compared: {pair.why_outputs_differ}"
        return stage
    earlier = ("activations", "loss", "gradients", "reduction", "optimizer")
    may_begin_here = not pair.has_difference(*earlier) and not pair.get_stage("hyperparameters").causes
    updates_are_computed = pair.get_stage("optimizer").verdict == EQUAL and not pair.get_stage("optimizer").note
    first_steps = []
    followed: dict[str, np.ndarray | None] = {}
    largest: dict[str, np.ndarray] = {}
    for step in pair.equal_steps:
        _update_followed(followed, largest, pair, step)
        for match in pair.models.variables:
            before, a, b = (
                read(side.read_weights(number))
                for read, side, number in (
                    (match.read_a, pair.a, step - 1), (match.read_a, pair.a, step), (match.read_b, pair.b, step),
                )
            )  # fmt: skip
            if before is None or a is None or b is None or a.shape != b.shape or a.dtype.kind != "f":
                continue
            is_followed = followed[match.title]
            if is_followed is not None and is_followed.shape == a.shape:
                b = np.where(is_followed, b, a)
            if step == pair.equal_steps[0]:
                first_steps.append(FirstStep(match.title, *(x.astype(np.float64) for x in (before, a, b))))
            follows = updates_are_computed and pair.a.trainable.issuperset(match.names_a) and may_begin_here
            earlier_noise = max(STEP_NOISE * step, pair.noise, pair.measure_weight_difference(step - 1))
            noise = max(FOLLOWING_NOISE, earlier_noise) if follows else earlier_noise
            norm = max(float(np.linalg.norm(a)), float(np.linalg.norm(a - before)), _get_deviation(pair, match, step))
            tensor = f"step {step}: {match.title}"
            stage.compare_arrays(tensor, a, b, noise, may_begin_here=may_begin_here, min_norm=norm)
    names = {cause.cause for cause in pair.get_stage("hyperparameters").causes}
    # If activations differ, so do the statistics of what follows
    if EVALUATION_MODE not in names and not pair.has_difference("activations"):
        is_frozen = NOT_TRAINED in names
        _explain(stage, first_steps, may_begin_here, is_frozen)
    return stage


def _get_deviation(pair: RecordPair, match: VariableMatch, step: int) -> float:
    """Return the norm of the standard deviations to which a moving mean is compared; 0 of other variables."""
    weights = pair.a.read_weights(step)
    variance = next((weights.get(name_moving_variance(name)) for name in match.names_a if "mean" in name), None)
    return 0.0 if variance is None else float(np.linalg.norm(np.sqrt(np.abs(variance.astype(np.float64)))))


def _update_followed(
    followed: dict[str, np.ndarray | None], largest: dict[str, np.ndarray], pair: RecordPair, step: int
) -> None:
    """Update which elements had equal gradients in all steps so far; Adam moves the others by rounding errors.

    The gradient of the bias of an attention's keys, for example, holds only rounding errors.

    Args:
        followed: The elements by the title of the variable; None if a gradient is missing.
        largest: The largest absolute values of A's gradients in the steps before, by the title of the variable.
        pair: The records.
        step: The step.
    """
    gradients_a, gradients_b = (side.read_reduced_gradients(step) for side in pair.sides)
    for match in pair.models.variables:
        a, b = match.read_a(gradients_a, is_gradient=True), match.read_b(gradients_b, is_gradient=True)
        if a is None or b is None or a.shape != b.shape:
            followed[match.title] = None
            continue
        earlier_size = largest.get(match.title, np.zeros(a.shape))
        is_equal = np.abs(a.astype(np.float64) - b) <= FOLLOWING_SHARE * np.abs(a) + EARLIER_SHARE * earlier_size
        largest[match.title] = np.maximum(earlier_size, np.abs(a))
        earlier = followed.get(match.title, is_equal)
        followed[match.title] = None if earlier is None else earlier & is_equal


def _explain(stage: Stage, first_steps: list[FirstStep], may_begin_here: bool, is_frozen: bool) -> None:
    """Add why moving statistics, or else other variables, differ. is_frozen: whether a side froze layers."""
    precision = stage.precision
    factors = find_momentum_factors([x for x in first_steps if is_moving_statistic(x.name)], precision)
    for name, factor in list(factors.items())[:1]:
        if is_frozen and not round(factor, 6):
            return  # Keras's BatchNormalization is in inference mode if it is frozen
        sentence = f"in B {name} moves {factor:.4g} times as far: compare momentum (Keras's is 1 - PyTorch's)"
        stage.add_cause("moving_statistics", "b", name, sentence)
        return
    if divisor := find_variance_divisor(first_steps, precision):
        sentence = f"in B {divisor.name} moves towards {divisor.factor:.6g} times A's variance: one divides by n - 1"
        stage.add_cause("biased_variance", "b", divisor.name, sentence)
        return
    check = next((check for check in stage.checks if check.begins_here), None)
    if check is not None and may_begin_here:
        sentence = f"{check.tensor} differs by {check.difference:.1e}, and no earlier stage explains that"
        stage.add_cause("unexplained", "b", check.tensor, sentence, confirmed=False)
