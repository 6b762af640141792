"""Sentences about a pair of runs: the meaning of its verdict, and the next thing to do."""

import shlex

import numpy as np

from common.compare.external.record_curve import RECORD_KIND_PREFIX
from common.compare.matched_steps import compute_differences, find_common_steps
from common.compare.pair import DIVERGED, LOCKSTEP, NOT_COMPARABLE, OTHER_CURVE, SAME_CURVE, RunPair
from common.recording.environment import UNKNOWN_DEVICE, read_environment

# Largest relative difference that rounding alone may cause. A ReLU in float32 made a difference of 3.4e-4 in the first
# gradient of examples/resnet.
SMALL_DIFFERENCE = 1e-3
ROUNDING = "; this may be rounding in float32, which a ReLU passes on at once (docs/parity.md, Long runs)"
ROUNDING_OF_DEVICES = "; this may be rounding in float32, which differs between devices ({} | {})"
HOW_TO_KNOW = ": train both with train.precision=float64 to know"


def explain_verdict(pair: RunPair) -> str:
    """Return one line on a pair: why it is not comparable, at which step it diverges, or that it agrees."""
    names = f"{pair.a} and {pair.b}"
    if pair.verdict == NOT_COMPARABLE:
        return f"{names}: {'; '.join(pair.reasons)}"
    unit = "epoch" if "epoch" in (pair.a.unit, pair.b.unit) else "step"
    if pair.verdict in (LOCKSTEP, SAME_CURVE):
        within = f"loss within {pair.max_loss_difference or 0:.2g} (tolerance {pair.tolerance.loss:.3g})"
        agreement = f"{names} agree at all {pair.steps} {unit}s"
        return agreement if pair.verdict == LOCKSTEP else f"{agreement} that both have: {within}"
    steps, loss, norm = compute_differences(pair.a, pair.b)
    row = int(np.flatnonzero(steps == pair.first_step_beyond)[0])
    excesses = []
    for name, value, tolerance in (
        ("loss", loss[row], pair.tolerance.loss),
        ("grad_norm", norm[row], pair.tolerance.grad_norm),
    ):
        if value > tolerance:
            excess = f"differs by {value:.2g}" if np.isfinite(value) else "is not finite"
            excesses.append(f"{name} {excess} (tolerance {tolerance:g}{', relative' if name == 'grad_norm' else ''})")
    sentence = f"{names} diverge at {unit} {pair.first_step_beyond} of {steps[-1]}: {' and '.join(excesses)}"
    scale = abs(pair.a.metrics["loss"][np.searchsorted(pair.a.steps, steps[row])])
    is_small = loss[row] <= SMALL_DIFFERENCE * scale and not norm[row] > SMALL_DIFFERENCE
    is_float32 = pair.a.precision == pair.b.precision == "float32"
    if not is_small or not is_float32 or pair.verdict != DIVERGED:
        return sentence
    devices = [read_environment(run.summary)["device"] for run in (pair.a, pair.b)]
    has_two_devices = len({*devices} - {UNKNOWN_DEVICE}) > 1
    return sentence + (ROUNDING_OF_DEVICES.format(*devices) if has_two_devices else ROUNDING) + HOW_TO_KNOW


def suggest_next_step(pair: RunPair) -> str | None:
    """Return the next step for two curves that differ; None for curves that agree or cannot be compared."""
    are_records = all(run.external_kind.startswith(RECORD_KIND_PREFIX) for run in (pair.a, pair.b))
    if pair.verdict == DIVERGED or (pair.verdict == OTHER_CURVE and are_records):
        command = f"python -m common.diagnose {shlex.quote(str(pair.a.path))} {shlex.quote(str(pair.b.path))}"
        # The path in config.yaml is not copied here: somebody else may have written it.
        pythons = [f" {name}.python=..." for name, run in (("a", pair.a), ("b", pair.b)) if run.config.get("python")]
        return command + "".join(pythons)
    if pair.verdict != OTHER_CURVE:
        return None
    first_common = find_common_steps(pair.a, pair.b).steps[0]
    if pair.first_step_beyond != first_common:
        place = (
            f"they agree before {pair.first_step_beyond}: compare the update (optimizer, schedule, clipping), and data"
        )
    elif first_common == 1 and "epoch" not in (pair.a.unit, pair.b.unit):
        place = "they differ before any update: compare the initial weights, the first batch, the loss and dropout"
    else:
        place = "they differ from the first row that both have: log the loss of each step from step 1"
    return (
        f"{place}; for the cause, run both models in Lockstep: python -m common.diagnose a=torch:single b=tf:single "
        "model=custom model.torch=MODULE:FUNCTION model.tf=MODULE:FUNCTION and your data (docs/custom_models.md)"
    )
