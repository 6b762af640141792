"""The stage "optimizer": slots and weights after each update, against the optimizer's formula in the run's config.

The slots are the optimizer's arrays, such as Adam's moments. Each side of a diagnosis, A or B, is compared with its own
config.
"""

from common.diagnose.explain.formula_variants import find_variants
from common.diagnose.explain.second_moment import explain_second_moment, recover_second_moments
from common.diagnose.explain.update_formula import OptimizerUpdate, configured_formula, measure_error
from common.diagnose.findings import Stage, TensorCheck

NOISE_SHARE = 0.01  # converts a tolerance to the noise of a check, because a check tolerates 100 times its noise
LISTED_PARAMETERS = 3  # number of parameters that a sentence names


def compare_optimizer(stage: Stage, side: str, update: OptimizerUpdate, *, are_slots_recorded: bool = True) -> None:
    """Compare one update of one side. Explain it if it is the side's first update that differs.

    Args:
        stage: The stage.
        side: The side, "a" or "b".
        update: The update.
        are_slots_recorded: Whether the slots come from the optimizer instead of a computation from the gradients.
    """
    place = f"{side.upper()}, step {update.step}"
    if are_slots_recorded:
        _compare_second_moments(stage, side, place, update)
    formula = configured_formula(update)
    check = TensorCheck(f"{place}: update", measure_error(formula, update), update.tolerance * NOISE_SHARE)
    stage.checks.append(check)
    if not check.differs or stage.has_cause_of(side):
        return
    variants = find_variants(formula, update)  # together they explain the update
    for variant in variants:
        for cause in variant.causes:
            stage.add_cause(cause, side, "update", f"in {place}: {variant.sentence}")
    if variants:
        return
    unchanged = [name for name, change in update.changes.items() if not change.any()]
    if unchanged:
        sentence = f"in {place}: {', '.join(unchanged[:LISTED_PARAMETERS])}: not updated"
        stage.add_cause("not_updated", side, unchanged[0], sentence)
        return
    sentence = f"in {place}: the update is {check.difference:.1e} off the formula"
    stage.add_cause("optimizer", side, "update", sentence, confirmed=False)


def _compare_second_moments(stage: Stage, side: str, place: str, update: OptimizerUpdate) -> None:
    """Compare what an update adds to Adam's slot exp_avg_sq with the squared gradient, for each parameter."""
    for moment in recover_second_moments(update):
        check = TensorCheck(f"{place}: exp_avg_sq.{moment.name}", moment.error, moment.tolerance * NOISE_SHARE)
        stage.checks.append(check)
        if check.differs and not stage.has_cause_of(side):
            explanation = explain_second_moment(moment, update)
            sentence = f"in {place}: {explanation.sentence}"
            stage.add_cause(explanation.cause, side, moment.name, sentence, explanation.confirmed)
