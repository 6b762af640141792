"""Checks that a run has the metrics that its config names."""

from importlib.util import find_spec

from common.config.metrics import (
    METRICS,
    RESERVED_NAMES,
    RunMetric,
    get_metric_name,
    get_second_prefix,
    list_fitting,
    list_run_metrics,
    list_values,
)
from common.config.schema import Config
from common.config.task_kinds import MultiOutputSettings
from common.errors import UserError


def check_metrics(config: Config) -> None:
    """Raise UserError if a metric does not exist, does not fit the task, or has the name of another value."""
    metrics = list_run_metrics(config)
    for metric in metrics:
        if ":" not in metric.metric:
            _check_name(metric)
            continue
        module, _, name = metric.metric.partition(":")
        if not (module and name.isidentifier()):
            raise UserError(f"metrics=[{metric.key}]: must be module:function, such as my_metrics:weighted_f1")
        if metric.name in {*RESERVED_NAMES, *config.task.values(0.0, 0.0)}:
            raise UserError(
                f"metrics=[{metric.key}]: an evaluation has a value {metric.name} already; rename the function"
            )
    names = [metric.name for metric in metrics]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"metrics: has {repeated[0]} twice; remove one, or rename the function")
    values, prefix = list_values(config), get_second_prefix(config)
    if config.train.evaluate_both and (repeated := [name for name in values if f"{prefix}{name}" in values]):
        raise UserError(
            f"train.evaluate_both=true: an evaluation has a value {prefix}{repeated[0]} already; rename its function "
            "or its output"
        )


def _check_name(metric: RunMetric) -> None:
    if metric.output and not metric.metric:
        example = f"{metric.output}.{list_fitting(metric.task)[0]}"
        raise UserError(
            f"metrics=[{metric.key}]: names the output {metric.output} without a metric; add one, such as {example}"
        )
    if metric.metric not in METRICS:
        raise UserError(f"metrics=[{metric.key}]: no such metric; there are {', '.join(METRICS)} and module:function")
    if metric.task.kind not in METRICS[metric.metric].tasks:
        title, prefix = f"task={metric.task.kind}", ""
        if metric.output:
            title, prefix = f"task.outputs.{metric.output}.kind={metric.task.kind}", f"{metric.output}."
        fitting = [f"{prefix}{name}" for name in (*list_fitting(metric.task), "module:function")]
        raise UserError(f"metrics=[{metric.key}]: does not fit {title}; choose {', '.join(fitting)}")
    if (package := METRICS[metric.metric].package) and find_spec(package) is None:
        raise UserError(f"metrics=[{metric.key}]: {package} is not installed; pip install 'lockstep[{package}]'")


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
    has_outputs = isinstance(config.task, MultiOutputSettings)
    hint = f"; choose {', '.join(values)}, or add a metric with metrics=[...]"
    for metric in list_fitting(config.task):
        name = get_metric_name(metric, has_outputs)
        if value == name:
            hint = f"; add it with metrics=[{metric}], or choose {', '.join(values)}"
        elif value == metric:
            hint = f"; write {name}" if name in values else f"; write {name}, and add it with metrics=[{metric}]"
    raise UserError(f"{key}={value}: not a value of an evaluation of this run{hint}")
