"""The stage "evaluation": loss and metrics that both runs report for the validation data at their end.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

import numpy as np

from common.config.metrics import AVERAGE, RAW
from common.config.tasks import TASK_METRICS
from common.diagnose.comparison import SideComparison
from common.diagnose.findings import DIFFERS, Stage
from common.diagnose.stages.state import STEP_NOISE

NOT_METRICS = ("step", "duration")  # keys of an evaluation that are not compared
NOISE_OF_EVALUATION = 10  # noise of an evaluation as a multiple of the noise of a step


def compare_evaluations(comparison: SideComparison) -> list[Stage]:
    """Compare the last evaluations of both runs, and check that they count all validation examples."""
    a, b = comparison.a, comparison.b
    stage = Stage("evaluation", precision=comparison.precision)
    if nonfinite_loss := a.nonfinite_loss or b.nonfinite_loss:
        stage.omit(f"a training run ends at {nonfinite_loss}")
        return [stage]
    _compare_metrics(stage, comparison)
    for run in (a, b):
        missing = len(run.prepared.cache.validation) - int(run.evaluation["count"])
        if missing:
            sentence = f"{missing} validation examples are not evaluated"
            stage.add_cause("examples_not_evaluated", run.name, "count", sentence)
    if stage.verdict == DIFFERS and not stage.causes:
        tensor = stage.worst_check.tensor if stage.worst_check else ""
        sentence = "with equal weights B reports another evaluation"
        stage.add_cause("evaluation", "b", tensor, sentence, confirmed=False)
    return [stage]


def _compare_metrics(stage: Stage, comparison: SideComparison) -> None:
    a, b, precision = comparison.a, comparison.b, comparison.precision
    may_begin_here = not comparison.earlier_stage_differs
    for key, value in a.evaluation.items():
        if key in NOT_METRICS:
            continue
        name = key.removeprefix(RAW).removeprefix(AVERAGE)
        if name == "accuracy" and precision != "float64":
            stage.note = f"accuracy: not compared in {precision}, in which rounding alone may change an answer"
        elif key in b.evaluation:
            noise = STEP_NOISE[precision] * NOISE_OF_EVALUATION
            if name in ("loss", *TASK_METRICS):  # rounding may have moved the weights that are evaluated
                noise += comparison.drift.compute_loss_drift(len(a.states) - 1, a.evaluation["loss"])
            value_a, value_b = np.array([float(value)]), np.array([float(b.evaluation[key])])
            stage.compare_arrays(key, value_a, value_b, noise, may_begin_here=may_begin_here)
