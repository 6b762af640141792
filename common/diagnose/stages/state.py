"""The stage "state": weights, moving statistics and losses after each step.

A is the reference run of a diagnosis, and B the run that is compared with it. Rounding alone makes their weights drift
apart from step to step. Only a difference larger than this drift counts.
"""

import numpy as np

from common.diagnose.comparison import SideComparison
from common.diagnose.explain.moving_statistics import (
    find_momentum_factors,
    find_variance_divisor,
    is_moving_statistic,
    list_first_steps,
    name_moving_variance,
)
from common.diagnose.findings import Explanation, Stage
from common.diagnose.side_run import SideRun
from common.map.array_differences import compute_norm

# Rounding error of the weights and losses of one step, relative to their norm; a run in bfloat16 has them in float32
STEP_NOISE = {"float64": 1e-12, "float32": 2.0**-23, "bfloat16": 2.0**-23}


def compare_states(comparison: SideComparison) -> list[Stage]:
    """Compare the states after all steps, or only the last states if a run updates asynchronously."""
    stage = Stage("state", precision=comparison.precision)
    asynchronous = next((run for run in comparison.runs.values() if run.is_asynchronous), None)
    if asynchronous is not None:
        _compare_last_states(stage, comparison, asynchronous)
        return [stage]
    momentum_factors = find_momentum_factors(list_first_steps(comparison.a, comparison.b), comparison.a.precision)
    may_begin_here = not comparison.earlier_stage_differs
    _compare_weights(stage, comparison, momentum_factors, may_begin_here)
    _compare_rows(stage, comparison, may_begin_here)
    _compare_ends(stage, comparison, may_begin_here)
    tensor, explanation = _explain_difference(stage, comparison, momentum_factors)
    if explanation is not None:
        stage.add_explanation(tensor, explanation)
    return [stage]


def _compare_last_states(stage: Stage, comparison: SideComparison, asynchronous: SideRun) -> None:
    """Compare the weights at the end, and add the asynchronous run as the cause."""
    last_a, last_b = (run.states[-1].weights for run in comparison.runs.values())
    for name, weight in last_a.items():
        if name not in last_b:
            continue
        stage.compare_arrays(f"end: {name}", weight, last_b[name])
    sentence = (
        f"{asynchronous.title} updates asynchronously: its gradients come from older weights, to which other workers "
        "have since applied updates; strategy.max_staleness=0 makes it synchronous"
    )
    stage.add_cause("asynchronous", asynchronous.name, "weights", sentence, confirmed=False)


def _compare_weights(
    stage: Stage, comparison: SideComparison, momentum_factors: dict[str, float], may_begin_here: bool
) -> None:
    """Compare the weights after each step.

    Args:
        stage: The stage.
        comparison: The comparison of the runs.
        momentum_factors: Moving statistics whose difference in the first step comes from the momentum alone.
        may_begin_here: Whether no earlier stage differs, so that a difference begins here.
    """
    a, b = comparison.a, comparison.b
    for count, (state_a, state_b) in enumerate(zip(a.states[1:], b.states[1:], strict=False), start=1):
        for name, weight in state_a.weights.items():
            weight_b = state_b.weights.get(name)
            if weight_b is None or weight_b.shape != weight.shape or name in comparison.noisy_parameters:
                continue
            min_norm = compute_norm(weight)  # Adam moves elements without a gradient by rounding errors
            if is_moving_statistic(name):  # a mean is compared relative to the standard deviation
                variance = state_a.weights.get(name_moving_variance(name))
                if variance is not None:
                    min_norm = max(min_norm, compute_norm(np.sqrt(np.abs(variance))))
            stage.compare_arrays(
                f"step {a.steps_before + count}: {name}",
                weight,
                weight_b,
                STEP_NOISE[a.precision] * count + comparison.drift.compute_weight_drift(count, name),
                may_begin_here=may_begin_here or (count == 1 and name in momentum_factors),
                min_norm=min_norm,
            )


def _compare_rows(stage: Stage, comparison: SideComparison, may_begin_here: bool) -> None:
    """Compare the losses and the learning rates of metrics.jsonl."""
    noise = STEP_NOISE[comparison.precision]
    for count, (row_a, row_b) in enumerate(zip(comparison.a.rows, comparison.b.rows, strict=False)):
        drift = comparison.drift.compute_loss_drift(count, row_a["loss"])
        for key, noise_of_key in (("loss", noise + drift), ("learning_rate", noise)):
            value_a, value_b = np.array([row_a[key]]), np.array([row_b[key]])
            stage.compare_arrays(
                f"step {row_a['step']}: {key}", value_a, value_b, noise_of_key, may_begin_here=may_begin_here
            )


def _compare_ends(stage: Stage, comparison: SideComparison, may_begin_here: bool) -> None:
    """Check whether only one side ended because its loss was not finite."""
    ended_runs = [run for run in comparison.runs.values() if run.nonfinite_loss]
    if len(ended_runs) != 1:
        return
    run = ended_runs[0]
    stage.add_mismatch(f"{run.name.upper()}: loss", may_begin_here)
    if may_begin_here:
        sentence = f"{run.title} ends at {run.nonfinite_loss}"
        stage.add_cause("not_finite", run.name, "loss", sentence, confirmed=False)


def _explain_difference(
    stage: Stage, comparison: SideComparison, momentum_factors: dict[str, float]
) -> tuple[str, Explanation | None]:
    """Return the tensor that differs and why; None if nothing differs or the stage already has another cause."""
    first_step = f"step {comparison.a.steps_before + 1}"
    if momentum_factors:
        name, factor = next(iter(momentum_factors.items()))
        sentence = f"in B {name} moves {factor:.4g} times as far: compare momentum (Keras's is 1 - PyTorch's)"
        return f"{first_step}: {name}", Explanation("moving_statistics", sentence)
    if divisor := find_variance_divisor(list_first_steps(comparison.a, comparison.b), comparison.a.precision):
        n, n_minus_one = divisor.n, divisor.n - 1
        divisor_b, divisor_a = (n, n_minus_one) if divisor.factor < 1 else (n_minus_one, n)
        sentence = (
            f"in B {divisor.name} moves towards {divisor.factor:.6g} times A's variance: the sum of squares is divided "
            f"by {divisor_b} in B and by {divisor_a} in A"
        )
        return f"{first_step}: {divisor.name}", Explanation("biased_variance", sentence)
    check = next((check for check in stage.checks if check.begins_here), None)
    if stage.causes or check is None:
        return "", None
    name = check.tensor.partition(": ")[2]  # the tensor is, for example, "step 1: fc.weight"
    if is_moving_statistic(name):
        sentence = f"{name} differs: compare the examples of the batch, and whether the variance divides by n - 1"
        return check.tensor, Explanation("moving_statistics", sentence, confirmed=False)
    sentence = f"{check.tensor} differs by {check.difference:.1e}, and no earlier stage explains that"
    return check.tensor, Explanation("unexplained", sentence, confirmed=False)
