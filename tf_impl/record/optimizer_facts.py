"""Description of a Keras optimizer: its hyperparameters, learning rate and slots."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from common.recording.record_format import OptimizerFacts, ParameterGroup
from common.recording.record_writer import list_plain_values
from tf_impl.record.patches import Patches
from tf_impl.record.tensors import to_array, view_array

Optimizer = Any  # of Keras 2, its legacy optimizers, or Keras 3
MOMENTUMS = "momentums"
LEGACY_SLOTS = {"m": MOMENTUMS, "v": "velocities", "momentum": MOMENTUMS, "vhat": "velocity_hats"}


def unwrap_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that updates, without the LossScaleOptimizer around it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def check_optimizer(optimizer: Optimizer) -> None:
    """Raise ValueError if an object is no Keras optimizer."""
    if not all(hasattr(optimizer, name) for name in ("apply_gradients", "get_config", "iterations")):
        raise ValueError(f"optimizer: is a {type(optimizer).__name__}; pass a Keras optimizer")


def describe_optimizer(
    optimizer: Optimizer, variables: Mapping[str, Any], updated: Mapping[str, object], state: Mapping[str, object]
) -> OptimizerFacts:
    """Describe an optimizer.

    Args:
        optimizer: The optimizer.
        variables: The variables of the model by name.
        updated: Has the names of those that it updates.
        state: The learning rate and the number of updates before the first recorded step, by name.
    """
    inner = unwrap_optimizer(optimizer)
    hyperparameters = list_plain_values({**read_config(inner), **state})
    with_decay = [name for name in updated if name in variables and _has_weight_decay(inner, variables[name])]
    without_decay = [name for name in updated if name in variables and name not in with_decay]
    groups: list[ParameterGroup] = []
    if with_decay:
        groups.append({"parameters": with_decay, "hyperparameters": hyperparameters})
    if without_decay:
        decay = {"weight_decay": None} if hyperparameters.get("weight_decay") is not None else {}
        groups.append({"parameters": without_decay, "hyperparameters": {**hyperparameters, **decay}})
    trainable = [name for name, variable in variables.items() if variable.trainable]
    return {
        "name": f"{type(inner).__module__}.{type(inner).__qualname__}",
        "groups": groups,
        "missing": [name for name in trainable if name not in updated and not _knows(inner, variables[name])],
        "frozen": [name for name in variables if name not in trainable],
    }


def _knows(optimizer: Optimizer, variable: object) -> bool:
    """Check whether an optimizer of Keras 3 has received a variable, perhaps without a gradient."""
    return any(variable is known for known in getattr(optimizer, "_trainable_variables", ()))


def describe_schedule(optimizer: Optimizer) -> dict[str, object] | None:
    """Describe the schedule of the learning rate; None if the rate is a number."""
    schedule = _find_schedule(unwrap_optimizer(optimizer))
    if schedule is None:
        return None
    name = f"{type(schedule).__module__}.{type(schedule).__qualname__}"
    config: dict[str, object] = {}
    with contextlib.suppress(NotImplementedError):  # a schedule of the script without a configuration
        config = schedule.get_config()
    return {"name": name, **list_plain_values({**config, "name": name})}


def read_config(optimizer: Optimizer) -> dict[str, object]:
    """Return the configuration of an optimizer, also if its schedule has none."""
    try:
        return dict(optimizer.get_config())
    except NotImplementedError:
        patches = Patches()
        patches.replace(_find_schedule(optimizer), "get_config", dict)
        try:
            return dict(optimizer.get_config())
        finally:
            patches.restore()


def read_rate(optimizer: Optimizer) -> float:
    """Return the learning rate that the next update uses."""
    inner = unwrap_optimizer(optimizer)
    schedule = _find_schedule(inner)  # Keras 2's `learning_rate` is that of the last update
    return float(to_array(inner.learning_rate if schedule is None else schedule(inner.iterations)))


def count_updates(optimizer: Optimizer) -> int:
    """Return how often the optimizer updated the variables."""
    return int(to_array(unwrap_optimizer(optimizer).iterations))


def read_loss_scale(optimizer: Optimizer) -> float | None:
    """Return the factor by which the optimizer multiplies the loss; None if it does not."""
    if optimizer is unwrap_optimizer(optimizer):
        factor = getattr(optimizer, "loss_scale_factor", None)
        return None if factor is None else float(factor)
    for name in ("dynamic_scale", "loss_scale", "initial_scale"):  # Keras 3, Keras 2, Keras 3 before it is built
        if getattr(optimizer, name, None) is not None:
            return float(to_array(getattr(optimizer, name)))
    return None


def view_slots(optimizer: Optimizer, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the slots that have the shape of their variable, as they are named in a record."""
    slots = _iterate_slots(unwrap_optimizer(optimizer), variables)
    return {f"slot/{name}/{slot}": view_array(array) for slot, name, array in slots}


def view_momentums(optimizer: Optimizer, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the momentums by the name of the variable; none if the optimizer has none."""
    slots = _iterate_slots(unwrap_optimizer(optimizer), variables)
    return {name: view_array(array) for slot, name, array in slots if slot == MOMENTUMS}


def _iterate_slots(optimizer: Optimizer, variables: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    if hasattr(optimizer, "get_slot_names"):  # a legacy optimizer of Keras 2
        for slot in optimizer.get_slot_names():
            for name, variable in variables.items():
                if variable.trainable and slot in optimizer._slots.get(_get_legacy_key(variable), {}):
                    yield LEGACY_SLOTS.get(slot, slot), name, optimizer.get_slot(variable, slot)
        return
    indices = getattr(optimizer, "_trainable_variables_indices", None) or getattr(optimizer, "_index_dict", {})
    for attribute, values in list(vars(optimizer).items()):
        if not isinstance(values, (list, tuple)) or attribute in ("_variables", "_trainable_variables"):
            continue
        for name, variable in variables.items():
            index = indices.get(optimizer._var_key(variable), len(values))
            slot = values[index] if index < len(values) else None
            if slot is not None and hasattr(slot, "shape") and tuple(slot.shape) == tuple(variable.shape):
                yield attribute.lstrip("_"), name, slot


def _find_schedule(inner: Optimizer) -> Any:  # noqa: ANN401  any schedule
    schedules = (getattr(inner, "_learning_rate", None), getattr(inner, "_hyper", {}).get("learning_rate"))
    return next((schedule for schedule in schedules if hasattr(schedule, "get_config")), None)


def _get_legacy_key(variable: tf.Variable) -> str:
    primary = getattr(variable, "_distributed_container", lambda: None)() or variable
    return f"{primary._shared_name}" if getattr(primary, "_in_graph_mode", False) else str(primary._unique_id)


def _has_weight_decay(optimizer: Optimizer, variable: object) -> bool:
    try:
        return bool(optimizer._use_weight_decay(variable))
    except Exception:  # a legacy optimizer has no exclusions
        return True
