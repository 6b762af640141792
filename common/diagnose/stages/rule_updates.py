"""The updates of optimizers other than plain SGD, Adam and AdamW: each is computed again from the shards' gradients.

The slots of these optimizers do not give the gradients back, so one comparison covers the stages "reduction" and
"optimizer".
"""

from collections.abc import Mapping, Sequence

import numpy as np

from common.config.schema import Config
from common.diagnose.explain.rule_variants import RuleUpdate, RuleVariant, find_rule_variant, measure_errors
from common.diagnose.explain.step_gradients import global_norm, sum_gradients
from common.diagnose.explain.update_settings import read_update_settings
from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.side_run import SideRun
from common.training.schedule import find_update_settings

Gradients = Mapping[str, np.ndarray]
NOISE_SHARE = 0.01  # converts a tolerance to the noise of a check, because a check tolerates 100 times its noise
# Largest relative error of an update, by precision; a rule amplifies the noise of small gradients
TOLERANCES = {"float64": 1e-6, "float32": 1e-3}


def needs_rule(config: Config) -> bool:
    """Return whether an update has options or an optimizer beyond the formulas of SGD, Adam and AdamW."""
    optimizer = config.optimizer
    has_options = optimizer.clip_norm is not None or optimizer.clip_value is not None or bool(optimizer.groups)
    is_plain = optimizer.kind in ("sgd", "adam", "adamw") and not has_options
    return not (is_plain and (optimizer.has_fused_operation or optimizer.semantics == "native"))


def compare_rule_update(
    reduction: Stage, optimizer: Stage, run: SideRun, index: int, shard_gradients: Sequence[Gradients]
) -> None:
    """Compare one update of a run with the rule of its optimizer. Explain the first one that differs.

    Args:
        reduction: The stage "reduction", which compares the norm of the gradient.
        optimizer: The stage "optimizer".
        run: The run.
        index: The index of the step, from 0.
        shard_gradients: The gradients of each shard, at the weights before the step.
    """
    before, after, side = run.states[index], run.states[index + 1], run.name
    step = run.batches[index].step
    place, gradients = f"{side.upper()}, step {step}", sum_gradients(shard_gradients)
    tolerance = TOLERANCES.get(run.config.train.precision, TOLERANCES["float32"])
    norm, reported = global_norm(gradients), run.rows[index]["grad_norm"]
    check = TensorCheck(f"{place}: grad_norm", abs(norm - reported) / (norm or 1.0), tolerance * NOISE_SHARE)
    reduction.checks.append(check)
    update = RuleUpdate(
        find_update_settings(run.config, step),
        read_update_settings(run.config, step, run.plateau_factors[index]),
        step,
        run.replicas,
        before.weights,
        after.weights,
        before.slots,
        after.slots,
        gradients,
    )
    errors = measure_errors(RuleVariant(update.settings, update.rates.rate), update)
    checks = [TensorCheck(f"{place}: {name}", error, tolerance * NOISE_SHARE) for name, error in errors.items()]
    optimizer.checks += checks
    if not any(check.differs for check in checks) or optimizer.has_cause_of(side) or reduction.has_cause_of(side):
        if check.differs and not reduction.has_cause_of(side):
            sentence = f"in {place}: the norm of the gradient is {reported:.6g}, that of the shards' sum {norm:.6g}"
            reduction.add_cause("reduction", side, "grad_norm", sentence, confirmed=False)
        return
    variant = find_rule_variant(update)
    if variant is not None:
        stage = reduction if variant.scale != 1 else optimizer
        stage.add_cause(variant.cause, side, "update", f"in {place}: {variant.sentence}")
        return
    worst = max(errors, key=lambda name: errors[name])
    sentence = f"in {place}: the {worst} is {errors[worst]:.1e} off the rule of {update.settings.kind}"
    optimizer.add_cause("optimizer", side, worst, sentence, confirmed=False)
