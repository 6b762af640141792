"""Compare two training runs stage by stage. Find the first difference and its causes.

A is the reference run, and B the run that is compared with it. A stage compares one part of their training. The stages
follow the order of training, so that a stage can tell whether a difference begins at it or comes from an earlier one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from common.diagnose.arguments import SideArguments
from common.diagnose.comparison import SideComparison
from common.diagnose.diagnosis import Diagnosis
from common.diagnose.findings import Stage
from common.diagnose.finished_runs import compare_with_finished
from common.diagnose.stages.activations import compare_activations
from common.diagnose.stages.batch import MISSING_ARRAY, compare_batches
from common.diagnose.stages.config import compare_configs, list_values_of_a
from common.diagnose.stages.dropout import compare_dropout
from common.diagnose.stages.environment import compare_environments, finish_environment
from common.diagnose.stages.evaluation import compare_evaluations
from common.diagnose.stages.gradients import compare_gradients
from common.diagnose.stages.initial_weights import compare_initial_weights
from common.diagnose.stages.loss import compare_losses
from common.diagnose.stages.state import compare_states
from common.diagnose.stages.transforms import compare_transforms
from common.diagnose.stages.unpaired_layers import compare_layer_lists
from common.diagnose.stages.updates import compare_updates
from common.diagnose.train_sides import check_streams, train_sides, train_with_values

StageFunction = Callable[[SideComparison], list[Stage]]

# Stages that compare the inputs of the models, and stages that compute on both models
INPUT_STAGES: tuple[StageFunction, ...] = (
    compare_batches,
    compare_transforms,
    compare_layer_lists,
    compare_initial_weights,
)
TRAINING_STAGES: tuple[StageFunction, ...] = (
    compare_activations,
    compare_losses,
    compare_gradients,
    compare_dropout,
    compare_updates,
    compare_states,
    compare_evaluations,
)


def diagnose(sides: Sequence[SideArguments], output: Path) -> Diagnosis:
    """Train both sides for a few steps and compare them. Raise UserError if a training run fails."""
    check_streams(sides)
    a, b = train_sides(sides, output)
    recorded = compare_with_finished((a, b))
    stages = [compare_environments(a, b), compare_configs(a, b)]
    # Otherwise the different configs would hide differences that the other stages look for.
    if values_of_a := list_values_of_a(a, b):
        b = train_with_values(b, values_of_a, output)
    with SideComparison(a, b, stages) as comparison:
        return replace(compare_stages(comparison), recorded=recorded, notes=finish_environment(comparison))


def compare_stages(comparison: SideComparison) -> Diagnosis:
    """Compare all stages after "config", and return the result of all stages."""
    titles = {name: run.title for name, run in comparison.runs.items()}
    stages, precision = comparison.stages, comparison.precision
    for compare in INPUT_STAGES:
        stages += compare(comparison)
    if any(cause.cause == MISSING_ARRAY for cause in comparison.stage("batch").causes):  # no model accepts both batches
        return Diagnosis(titles, stages, precision=precision)
    for compare in TRAINING_STAGES:
        stages += compare(comparison)
    if not comparison.has_difference(*(stage.name for stage in stages if stage.name not in ("config", "environment"))):
        # B equals A if it trains with A's values, so that the differing keys explain every difference
        config = comparison.stage("config")
        config.causes = [replace(cause, confirmed=True) for cause in config.causes]
    for stage in stages:
        stage.note = stage.note or stage.rounding_note
    return Diagnosis(titles, stages, comparison.unpaired_parameters, precision)
