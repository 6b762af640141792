"""The stage "dropout": outputs in training mode.

A is the reference run of a diagnosis, and B the run that is compared with it. A run with aligned dropout
(model.dropout_semantics=aligned) derives its masks from the seed, the step and the example, so that the masks of both
runs are equal. A run with native dropout draws masks of its own.
"""

import numpy as np

from common.diagnose.comparison import SideComparison
from common.diagnose.findings import DIFFERS, Stage
from common.diagnose.observation import Observation
from common.diagnose.rounding import measure_noise
from common.diagnose.side_run import SideRun
from common.diagnose.stages.activations import EVALUATION_MODE, TRAINING_MODE

SMALLEST_NOISE = 1e-13  # relative noise that is assumed if the measured noise is smaller


def compare_dropout(comparison: SideComparison) -> list[Stage]:
    """Compare the outputs in training mode, and check whether a side draws dropout masks of its own."""
    stage = Stage("dropout", precision=comparison.precision)
    if [getattr(run.config.model, "dropout", None) for run in comparison.runs.values()] == [0, 0]:
        stage.note = "the models have no dropout"
        return [stage]
    models = comparison.training_mode
    may_begin_here = not comparison.has_difference(EVALUATION_MODE, TRAINING_MODE)
    for a, b, perturbed in zip(models.a.outputs, models.b.outputs, models.a_perturbed.outputs, strict=False):
        if a.shape == b.shape:
            noise = max(SMALLEST_NOISE, measure_noise(a, perturbed))
            stage.compare_arrays("outputs in training mode", a, b, noise, may_begin_here=may_begin_here)
    for run, observation in ((comparison.a, models.a), (comparison.b, models.b)):
        if run.config.model.dropout_semantics == "native" and run.rows:
            _compare_native(stage, run, observation, may_begin_here)
    if stage.verdict == DIFFERS and not stage.causes:
        sentence = "the models differ in training mode only"
        stage.add_cause("training_mode", "b", "outputs", sentence, confirmed=False)
    return [stage]


def _compare_native(stage: Stage, run: SideRun, observation: Observation, may_begin_here: bool) -> None:
    """Compare a run's first loss with the loss without dropout, because native masks cannot be computed again."""
    trained, without_dropout = np.array([run.rows[0]["loss"]]), np.array([_compute_mean_loss(run, observation)])
    tensor = f"{run.name.upper()}: loss without dropout"
    check = stage.compare_arrays(tensor, trained, without_dropout, SMALLEST_NOISE)
    if check.differs and may_begin_here and not stage.causes:
        sentence = f"{run.title} draws dropout masks of its own: set model.dropout_semantics=aligned"
        stage.add_cause("dropout_masks", run.name, "outputs", sentence)


def _compute_mean_loss(run: SideRun, observation: Observation) -> float:
    """Return the mean loss of the first global batch without dropout: native layers drop nothing in an observation."""
    batch = run.batches[0]
    parts = zip(observation.losses, batch.shard(0, 1), strict=True)
    return float(sum((losses * part["weights"]).sum() for losses, part in parts)) / batch.weight
