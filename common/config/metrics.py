"""Metrics of the validation data that the config key `metrics` may name, besides the values that a task reports.

A metric is one of METRICS, or a function of the user, named as module:function. If the task has several outputs, the
name of an output stands before it, as in mask.iou. Training does not compute metrics. An evaluation gathers the
predictions of all examples, and `common.metrics` computes the metrics from them.
"""

from dataclasses import dataclass

from common.config.import_object import import_object
from common.config.schema import Config
from common.config.task_kinds import MultiOutputSettings
from common.config.tasks import TaskSettings
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


# Metrics of task=contrastive: the share of the examples whose partner is among the first k candidates, with k
RECALLS = {"recall_at_1": 1, "recall_at_5": 5, "recall_at_10": 10}
METRICS: dict[str, Metric] = {
    "accuracy": Metric(CLASS_TASKS, NO_PREDICTIONS),
    **dict.fromkeys(("f1", "precision", "recall"), Metric(CLASS_TASKS)),
    "auc": Metric(("classification", "binary"), OUTPUTS),
    **dict.fromkeys(("matthews", "iou", "dice"), Metric(CLASS_TASKS)),
    "mae": Metric(("regression",), OUTPUTS, higher_is_better=False),
    **dict.fromkeys(("r2", "pearson", "spearman"), Metric(("regression",), OUTPUTS)),
    "top5": Metric(("classification",), OUTPUTS),
    "bleu": Metric(("classification", "language_model"), package="sacrebleu"),
    **dict.fromkeys((*RECALLS, "mean_reciprocal_rank"), Metric(("contrastive",), OUTPUTS)),
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
RAW, AVERAGE = "raw_", "average_"  # prefixes of the values of the second evaluation, of train.evaluate_both


@dataclass(frozen=True)
class RunMetric:
    """A metric that the config of a run names.

    Attributes:
        key: The entry of `metrics`, such as f1, mask.iou or my_metrics:weighted_f1.
        name: The name in the rows, such as f1, mask_iou or weighted_f1.
        metric: A name in METRICS, or a function of the user.
        task: The task of the output whose predictions the metric judges.
        output: The name of this output; "" if the task has only one.
    """

    key: str
    name: str
    metric: str
    task: TaskSettings
    output: str = ""

    @property
    def predictions(self) -> str:
        """The predictions from which it is computed; NO_PREDICTIONS if the task itself reports it."""
        return METRICS[self.metric].predictions if self.metric in METRICS else OUTPUTS

    @property
    def higher_is_better(self) -> bool:
        """Return whether a larger value is better. A function of the user may have an attribute that says so."""
        if self.metric in METRICS:
            return METRICS[self.metric].higher_is_better
        return bool(getattr(import_object(self.metric), "higher_is_better", True))


def get_metric_name(key: str, has_outputs: bool) -> str:
    """Return the name of a metric in the rows: its name in METRICS, or the name of the user's function.

    Args:
        key: An entry of `metrics`.
        has_outputs: Whether the task has several outputs. The name of the output then comes first.
    """
    output, _, metric = key.partition(".") if has_outputs else ("", "", key)
    name = metric.rpartition(":")[2]
    return f"{output}_{name}" if has_outputs else name


def list_run_metrics(config: Config) -> list[RunMetric]:
    """Return the metrics of a run. Raise UserError if one of them should name an output, and does not."""
    if not isinstance(config.task, MultiOutputSettings):
        return [RunMetric(key, get_metric_name(key, False), key, config.task) for key in config.metrics]
    tasks = {output.name: output.task for output in config.task.tasks}
    metrics = []
    for key in config.metrics:
        output, _, metric = key.partition(".")
        if output not in tasks:
            example = "module:function" if ":" in key else key.rpartition(".")[2]
            raise UserError(
                f"metrics=[{key}]: names no output of the task; name one first, such as {next(iter(tasks))}.{example}; "
                f"the outputs are {', '.join(tasks)}"
            )
        metrics.append(RunMetric(key, get_metric_name(key, True), metric, tasks[output], output))
    return metrics


def list_gathered_metrics(config: Config) -> list[RunMetric]:
    """Return the metrics of a run that are computed from gathered predictions."""
    return [metric for metric in list_run_metrics(config) if metric.predictions]


def choose_predictions(config: Config) -> str:
    """Return the predictions that an evaluation gathers: NO_PREDICTIONS, CLASSES or OUTPUTS.

    The logits of a language model are never gathered, because they are too many. If there are several outputs, CLASSES
    means the predicted classes of outputs with the task classification, and the other outputs as they are.
    """
    gathered = list_gathered_metrics(config)
    if not gathered and not config.train.predictions:
        return NO_PREDICTIONS
    if config.task.kind == "language_model":
        return CLASSES
    needs_logits = config.train.predictions or any(
        metric.predictions == OUTPUTS and metric.task.kind == "classification" for metric in gathered
    )
    return CLASSES if config.task.kind in ("classification", "multi_output") and not needs_logits else OUTPUTS


def list_values(config: Config) -> list[str]:
    """Return the names of all values that an evaluation of a run reports."""
    names = dict.fromkeys([*config.task.values(0.0, 0.0), *(metric.name for metric in list_run_metrics(config))])
    return list(names)


def get_second_prefix(config: Config) -> str:
    """Return the prefix of the values of the second evaluation: of the weights if runs follow their average."""
    return RAW if config.train.evaluate_average else AVERAGE


def is_higher_better(config: Config, value: str) -> bool:
    """Check whether a larger value is better. value: one of `list_values`."""
    metrics = {metric.name: metric for metric in list_run_metrics(config)}
    if value in metrics:
        return metrics[value].higher_is_better
    return METRICS[value].higher_is_better if value in METRICS else not value.endswith(LOWER_IS_BETTER)


def list_fitting(task: TaskSettings) -> list[str]:
    """Return the metrics that fit a task."""
    if isinstance(task, MultiOutputSettings):
        return [f"{output.name}.{metric}" for output in task.tasks for metric in list_fitting(output.task)]
    return [name for name in METRICS if task.kind in METRICS[name].tasks]
