"""Metrics of the validation data that the config key `metrics` may name, besides the values that a task reports.

A metric is one of METRICS, or a function of the user, named as module:function. It is not part of the training: an
evaluation gathers the predictions of all examples, from which `common.metrics` computes it.
"""

from dataclasses import dataclass
from importlib.util import find_spec

from common.config.import_object import import_object
from common.config.schema import Config
from common.errors import UserError
from common.records.rows import EVALUATION_FIELDS
from common.records.summary import Summary

CLASS_TASKS = ("classification", "binary", "language_model")
# Predictions of an evaluation: none, the class with the largest logit (at each position), or all outputs of the model.
NO_PREDICTIONS, CLASSES, OUTPUTS = "", "classes", "outputs"


@dataclass(frozen=True)
class Metric:
    """A metric that Lockstep has.

    Attributes:
        tasks: The kinds of the tasks that it fits.
        predictions: The predictions from which it is computed; NO_PREDICTIONS if the task itself reports it.
        higher_is_better: Whether a larger value is better.
        package: An optional package that computes it, also the name of the extra of lockstep; empty for none.
    """

    tasks: tuple[str, ...]
    predictions: str = CLASSES
    higher_is_better: bool = True
    package: str = ""


METRICS: dict[str, Metric] = {
    "accuracy": Metric(CLASS_TASKS, NO_PREDICTIONS),
    **dict.fromkeys(("f1", "precision", "recall"), Metric(CLASS_TASKS)),
    "auc": Metric(("classification", "binary"), OUTPUTS),
    **dict.fromkeys(("matthews", "iou", "dice"), Metric(CLASS_TASKS)),
    "mae": Metric(("regression",), OUTPUTS, higher_is_better=False),
    **dict.fromkeys(("r2", "pearson", "spearman"), Metric(("regression",), OUTPUTS)),
    "top5": Metric(("classification",), OUTPUTS),
    "bleu": Metric(("classification", "language_model"), package="sacrebleu"),
    "perplexity": Metric(("language_model",), NO_PREDICTIONS, higher_is_better=False),
}
# Fields of rows, summaries and comparisons, and axes of plots: no value of the user may have one of these names
RESERVED_NAMES = {
    "validation_loss",
    "version",
    "doubled_updates",
    *EVALUATION_FIELDS,
    "mean_absolute_error",
    *Summary.__annotations__,
    *METRICS,
}
# A value whose name ends with one of these is better if it is smaller, such as "loss", or "mask_loss" of an output
LOWER_IS_BETTER = ("loss", "mean_absolute_error")


def get_metric_name(metric: str) -> str:
    """Return the name of a metric in the rows: its name in METRICS, or the name of the user's function."""
    return metric.rpartition(":")[2]


def list_gathered_metrics(config: Config) -> list[str]:
    """Return the metrics of a run that are computed from gathered predictions, as the config names them."""
    return [metric for metric in config.metrics if metric not in METRICS or METRICS[metric].predictions]


def choose_predictions(config: Config) -> str:
    """Return the predictions that an evaluation gathers: NO_PREDICTIONS, CLASSES or OUTPUTS.

    The logits of a language model are never gathered, because they are too many.
    """
    gathered = list_gathered_metrics(config)
    if not gathered and not config.train.predictions:
        return NO_PREDICTIONS
    if config.task.kind == "language_model":
        return CLASSES
    needs_classes_only = all(metric in METRICS and METRICS[metric].predictions == CLASSES for metric in gathered)
    if config.task.kind == "classification" and needs_classes_only and not config.train.predictions:
        return CLASSES
    return OUTPUTS


def list_values(config: Config) -> list[str]:
    """Return the names of all values that an evaluation of a run reports."""
    names = dict.fromkeys([*config.task.values(0.0, 0.0), *map(get_metric_name, config.metrics)])
    return list(names)


def is_higher_better(config: Config, value: str) -> bool:
    """Check whether a larger value is better. value: one of `list_values`.

    A larger value of a user's function is better unless the function has an attribute `higher_is_better` that is false.
    """
    functions = {get_metric_name(metric): metric for metric in config.metrics if metric not in METRICS}
    if value in functions:
        return bool(getattr(import_object(functions[value]), "higher_is_better", True))
    return METRICS[value].higher_is_better if value in METRICS else not value.endswith(LOWER_IS_BETTER)


def check_metrics(config: Config) -> None:
    """Raise UserError if a metric does not exist, does not fit the task, or has the name of another value."""
    for metric in config.metrics:
        if ":" not in metric:
            _check_name(config, metric)
            continue
        module, _, name = metric.partition(":")
        if not (module and name.isidentifier()):
            raise UserError(f"metrics=[{metric}]: must be module:function, such as my_metrics:weighted_f1")
        if name in RESERVED_NAMES:
            raise UserError(f"metrics=[{metric}]: an evaluation has a value {name} already; rename the function")
    names = [get_metric_name(metric) for metric in config.metrics]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"metrics: has {repeated[0]} twice; remove one, or rename the function")


def _check_name(config: Config, metric: str) -> None:
    if metric not in METRICS:
        raise UserError(f"metrics=[{metric}]: no such metric; there are {', '.join(METRICS)} and module:function")
    task = config.task.kind
    if task not in METRICS[metric].tasks:
        fitting = [name for name in METRICS if task in METRICS[name].tasks]
        raise UserError(
            f"metrics=[{metric}]: does not fit task={task}; choose {', '.join([*fitting, 'module:function'])}"
        )
    if (package := METRICS[metric].package) and find_spec(package) is None:
        raise UserError(f"metrics=[{metric}]: {package} is not installed; pip install 'lockstep[{package}]'")


def check_followed_value(config: Config, key: str, value: str) -> None:
    """Raise UserError if a key names a value that no evaluation of the run reports.

    Args:
        config: The config.
        key: The full name of the key, such as schedule.metric.
        value: The name of a value of an evaluation, which the key holds.
    """
    values = list_values(config)
    if value in values:
        return
    hint = f"; add it with metrics=[{value}], or choose {', '.join(values)}"
    if value not in METRICS or config.task.kind not in METRICS[value].tasks:
        hint = f"; choose {', '.join(values)}, or add a metric with metrics=[...]"
    raise UserError(f"{key}={value}: no evaluation of this run has it{hint}")
