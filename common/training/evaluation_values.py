"""The values that an evaluation reports, and the best of them so far."""

import math
from collections.abc import Mapping
from typing import SupportsFloat

import numpy as np

from common.config.metrics import is_higher_better, list_gathered_metrics
from common.config.schema import Config
from common.config.task_kinds import MultiOutputSettings
from common.config.tasks import TaskSettings
from common.errors import UserError
from common.metrics.compute import compute_metrics
from common.metrics.predictions import Predictions
from common.training.rows import Row
from common.training.state import Position, Score
from common.training.strategy import Evaluation, Strategy

# The metrics that `Position.best` may belong to in a checkpoint of an earlier version, which did not save `score`.
UNSCORED_METRICS = ("loss", "accuracy")


def compute_values(
    config: Config, strategy: Strategy, evaluation: Evaluation, predictions: Mapping[str, Predictions]
) -> dict[str, float]:
    """Return the values of an evaluation by name. Call it on every rank; all ranks return the values of the chief.

    The values are the loss, the values of the task, and the gathered metrics, which are nan if they are not defined.
    predictions: The predictions by output; empty if nothing was gathered.
    """
    values = config.task.values(evaluation.loss, evaluation.metric)
    if gathered := list_gathered_metrics(config):
        names = [metric.name for metric in gathered]
        computed = dict.fromkeys(names, 0.0)
        if strategy.is_chief:
            if not predictions:
                kind = config.strategy.kind
                raise UserError(f"metrics: strategy={kind} returns no predictions from its evaluation; remove metrics")
            computed = compute_metrics(config, predictions)
        shared = strategy.share(np.array([computed[name] for name in names]))
        values |= dict(zip(names, shared.tolist(), strict=True))
    return values


def fetch_losses(task: TaskSettings, loss: SupportsFloat) -> dict[str, float]:
    """Fetch the losses of a step from the device: the loss, and the loss of each output if there are several.

    Args:
        task: The settings of the task.
        loss: The loss of a `StepResult`. A strategy of parameter servers may report the sum over the outputs only.
    """
    if not isinstance(task, MultiOutputSettings) or not getattr(loss, "shape", ()):
        return {"loss": float(loss)}
    weighted_losses = [float(element) for element in loss]  # type: ignore[attr-defined]  # a tensor [outputs]
    pairs = zip(task.tasks, weighted_losses, strict=True)
    losses = {f"{output.name}_loss": weighted_loss / output.weight for output, weighted_loss in pairs}
    return {"loss": sum(weighted_losses), **losses}


def format_values(values: dict[str, float]) -> Row:
    """Return the values as fields of a row. A metric that is nan is None, which is null in JSON; the loss stays nan."""
    return {name: None if name != "loss" and math.isnan(value) else value for name, value in values.items()}


def update_best_value(config: Config, position: Position, values: dict[str, float]) -> None:
    """Update the validation values, the score and the best value of a position."""
    stopping = config.train.early_stopping
    value = values[stopping.metric]
    if is_higher_better(config, stopping.metric):
        value = -value
    if position.score is None:
        is_same_metric = stopping.metric in UNSCORED_METRICS
    else:
        is_same_metric = position.score["metric"] == stopping.metric
    if not is_same_metric:  # the run was resumed with another train.early_stopping.metric
        position.best, position.waited = None, 0
    position.validation = values
    position.score = Score(metric=stopping.metric, value=value) if stopping.metric != "loss" else None
    is_first = position.best is None and not math.isnan(value)
    if is_first or (position.best is not None and value < position.best - stopping.min_delta):
        position.best, position.waited = value, 0
    else:
        position.waited += 1
