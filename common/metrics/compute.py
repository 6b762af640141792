"""The metrics of an evaluation, computed from the predictions of all examples."""

import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from common.config.import_object import import_function, import_object
from common.config.metrics import (
    METRICS,
    OUTPUTS,
    RunMetric,
    choose_predictions,
    list_gathered_metrics,
    list_run_metrics,
)
from common.config.schema import Config
from common.config.task_kinds import ContrastiveSettings
from common.config.tasks import BinarySettings, ClassTaskSettings, RegressionSettings, TaskSettings
from common.data.cache import Cache
from common.data.splits.multi_output_split import MultiOutputSplit
from common.data.transforms.transformed_split import TransformedOutputsSplit
from common.errors import UserError, describe_error, one_line
from common.metrics.predictions import Predictions

log = logging.getLogger("lockstep")


def check_functions(config: Config) -> None:
    """Raise UserError if a function of the user that `metrics` names cannot be imported."""
    for metric in list_run_metrics(config):
        if metric.metric not in METRICS:
            import_function("metrics", metric.metric)


def check_predictions(config: Config, cache: Cache) -> None:
    """Raise UserError if a metric needs outputs of equal shape, or several labels for each example, and lacks them."""
    gathered = list_gathered_metrics(config)
    for metric in gathered:
        if metric.metric == "bleu" and _get_label_shape(cache, metric.output) in ((), (1,)):
            raise UserError(f"metrics=[{metric.key}]: needs several labels for each example, such as tokens; remove it")
    if choose_predictions(config) == OUTPUTS and None in _get_label_shape(cache):
        named = ", ".join(metric.key for metric in gathered) or "train.predictions=true"
        raise UserError(
            f"metrics: {named} needs all outputs of the model, but examples have different numbers of labels; remove "
            "it, or choose a metric of predicted classes with task=classification"
        )


def _get_label_shape(cache: Cache, output: str = "") -> tuple[int | None, ...]:
    """Return the shape of the labels of an example, of one of several outputs if it is named."""
    split = cache.validation
    if output:
        if isinstance(split, TransformedOutputsSplit):
            split = split.transform_outputs(np.arange(1))
        assert isinstance(split, MultiOutputSplit)
        split = split.outputs[output]
    return split.example_shapes.get("labels") or ()


def compute_metrics(config: Config, predictions: Mapping[str, Predictions]) -> dict[str, float]:
    """Return the gathered metrics of a run by their names in the rows.

    A metric that is not defined for these predictions, or whose function fails, is nan, and a warning says why.
    predictions: the predictions of each output, as `common.metrics.output_predictions` returns them.
    """
    return {metric.name: _compute(metric, predictions[metric.output]) for metric in list_gathered_metrics(config)}


def _compute(metric: RunMetric, predictions: Predictions) -> float:
    problem = "is not defined for these predictions"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = _compute_value(metric.task, metric.metric, predictions)
        except Exception as error:  # a failure must not end the run before its weights are saved
            value, problem = math.nan, f"raised {describe_error(error)}"
    if not math.isfinite(value):
        reason = f" ({one_line(caught[-1].message)})" if caught else ""
        log.warning("metrics=[%s]: %s%s; its value is null", metric.key, problem, reason)
        return math.nan
    return value


def _compute_value(task: TaskSettings, metric: str, predictions: Predictions) -> float:
    if metric not in METRICS:
        return float(import_object(metric)(predictions.outputs, predictions.labels))
    if not np.isfinite(predictions.outputs).all():
        raise ValueError("some outputs of the model are not finite")
    # Imported here because only an evaluation needs scikit-learn.
    from common.metrics.class_metrics import compute_binary_metric, compute_class_metric
    from common.metrics.number_metrics import compute_number_metric

    if isinstance(task, ContrastiveSettings):
        from common.metrics.retrieval_metrics import compute_retrieval_metric

        return compute_retrieval_metric(metric, task, predictions.outputs)
    if isinstance(task, RegressionSettings):
        numbers = np.exp(predictions.outputs) if task.loss == "poisson" else predictions.outputs
        return compute_number_metric(metric, replace(predictions, outputs=numbers))
    ignore_label = task.ignore_label if isinstance(task, ClassTaskSettings) else None
    if metric == "bleu":
        from common.metrics.token_metrics import compute_bleu

        return compute_bleu(predictions, ignore_label)
    if isinstance(task, BinarySettings):
        return compute_binary_metric(metric, predictions, ignore_label)
    return compute_class_metric(metric, predictions, ignore_label)
