"""Conversion of config keys of earlier versions to today's keys, so that old runs and checkpoints stay readable."""

from collections.abc import Mapping

from common.config.data import DATA, TransformedSettings
from common.config.keys import Value

RENAMED = {  # first version -> today
    "data.name": "data.kind",
    "optimizer.name": "optimizer.kind",
    "schedule.name": "schedule.kind",
    "strategy.name": "strategy.kind",
    "strategy.workers": "strategy.replicas",
    "cluster.name": "cluster.kind",
}
# Keys that decide the curve and that earlier versions lack, with the values that describe the runs of these versions.
NO_AVERAGE: Mapping[str, Mapping[str, Value]] = {
    "ema": {"decay": None, "start_step": 1, "bias_corrected": False, "every": 1},
    "swa": {"start_step": None, "every": 1},
}
ADDED: Mapping[str, Value] = {
    "train.evaluate_average": False,
    **{f"{section}.{name}": value for section, values in NO_AVERAGE.items() for name, value in values.items()},
    "train.matmul_precision": None,
    "task.kind": "classification",
    "task.label_smoothing": 0.0,
    "task.class_weights": None,
}
ADDED_TO_TRANSFORMED_DATA: Mapping[str, Value] = {"data.transforms": [], "data.transform_evaluation": False}
# The keys of the tables below are without "optimizer.", "task." and "schedule.".
ADDED_TO_OPTIMIZERS: Mapping[str, Value] = {"clip_norm": None, "clip_value": None, "groups": []}
ADDED_BY_KIND: Mapping[Value, Mapping[str, Value]] = {
    "sgd": {"nesterov": False, "dampening": 0.0},
    "adam": {"amsgrad": False},
    "adamw": {"amsgrad": False},
}
ADDED_TO_CLASS_TASKS: Mapping[str, Value] = {
    "loss": "cross_entropy",
    "ignore_label": None,
    "gamma": 2.0,
    "dice_smooth": 1e-5,
}
ADDED_TO_TASKS: Mapping[Value, Mapping[str, Value]] = {
    "classification": {**ADDED_TO_CLASS_TASKS, "ignore_label": -100},
    "binary": {**ADDED_TO_CLASS_TASKS, "alpha": None},
    "regression": {"quantile": 0.5},
}
ADDED_TO_ALL_SCHEDULES: Mapping[str, Value] = {"warmup_start": None, "every": 1}
ADDED_TO_SCHEDULES: Mapping[Value, Mapping[str, Value]] = {
    "cosine": {"end_factor": 0.0, "cycles": 1},
    "one_cycle": {"cycle_momentum": False, "base_momentum": 0.85, "max_momentum": 0.95},
}


def upgrade_values(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values of a config of any version by today's keys. Values of today's version stay as they are.

    The first version distinguished the kinds of a group by `name`, and had `workers` beside `replicas`.

    Args:
        flat: values by full names of keys.
    """
    if "optimizer.name" not in flat:  # a version after the first
        added = {**_list_added(flat), **_upgrade_buffers(flat), **_upgrade_transforms(flat)}
        return {**added, **flat, **_upgrade_dropout(flat)}
    renamed = {RENAMED.get(name, name): value for name, value in flat.items()}
    values = {**_list_added(renamed), **_upgrade_dropout(flat), **renamed}
    if values.get("data.kind") == "mnli":
        values["data.kind"] = "hub"
    elif values.get("data.kind") == "mnist":
        values["data.kind"] = "hub_images"
    values = {**_upgrade_transforms(values), **values}
    if "model.channels" in values:  # the first version had no kinds of models
        values["model.kind"] = "convnet"
    else:
        values["model.kind"] = "bert" if "model.layers" in values else "pretrained"
    return values


def _list_added(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return the keys that earlier versions lacked, with the values that describe their runs."""
    return {**ADDED, **_upgrade_task(flat), **_upgrade_optimizer(flat), **_upgrade_schedule(flat)}


def _upgrade_dropout(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return today's value of model.dropout_semantics. The first versions lacked the key; their dropout was native.

    A model without dropout computes the same with both values, so it gets aligned. Only custom models, which have
    model.arguments, may hide dropout.
    """
    semantics = flat.get("model.dropout_semantics", "native")
    has_no_dropout = semantics == "native" and "model.arguments" not in flat and not flat.get("model.dropout")
    return {"model.dropout_semantics": "aligned" if has_no_dropout else semantics}


def _upgrade_buffers(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return model.buffers for custom models of runs from before this key, when forward passes changed no buffers."""
    return {"model.buffers": "equal"} if "model.arguments" in flat else {}


def _upgrade_transforms(flat: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the keys of transforms for kinds of data that have them. The first versions had no transforms."""
    schema = DATA.get(str(flat.get("data.kind")))
    return ADDED_TO_TRANSFORMED_DATA if schema is not None and issubclass(schema, TransformedSettings) else {}


def list_added_schedule_keys(kind: Value) -> Mapping[str, Value]:
    """Return the keys of a schedule that earlier versions lacked, with the values that describe their runs."""
    return {**ADDED_TO_ALL_SCHEDULES, **ADDED_TO_SCHEDULES.get(kind, {})}


def list_added_optimizer_keys(kind: Value) -> dict[str, Value]:
    """Return the keys of an optimizer that the first versions lacked, with the values that describe their runs."""
    return {**ADDED_TO_OPTIMIZERS, **ADDED_BY_KIND.get(kind, {})}


def list_added_task_keys(kind: Value) -> Mapping[str, Value]:
    """Return the keys of a task that earlier versions lacked, with the values that describe their runs."""
    return ADDED_TO_TASKS.get(kind, {})


def _upgrade_task(flat: Mapping[str, Value]) -> dict[str, Value]:
    kind = flat.get("task.kind", ADDED["task.kind"])
    return {f"task.{name}": value for name, value in list_added_task_keys(kind).items()}


def _upgrade_schedule(flat: Mapping[str, Value]) -> dict[str, Value]:
    kind = flat.get("schedule.kind")
    return {f"schedule.{name}": value for name, value in list_added_schedule_keys(kind).items()}


def _upgrade_optimizer(flat: Mapping[str, Value]) -> dict[str, Value]:
    kind = flat.get("optimizer.kind")
    return {f"optimizer.{name}": value for name, value in list_added_optimizer_keys(kind).items()}
