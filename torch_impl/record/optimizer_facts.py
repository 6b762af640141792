"""The description of an optimizer and its scheduler in a record, and the optimizer's arrays and rates."""

from __future__ import annotations

import functools

import numpy as np
import torch

from common.recording.record_format import OptimizerFacts, ParameterGroup
from common.recording.record_writer import list_plain_values
from torch_impl.record.arrays import view_tensor
from torch_impl.record.hand_updates import HandUpdates


def unwrap_optimizer(optimizer: object) -> torch.optim.Optimizer | None:
    """Return PyTorch's optimizer, without the objects that wrap it, such as Accelerate's; or None.

    An optimizer may also wrap another one that updates its parameters, such as that of sharpness-aware minimization.
    """
    while optimizer is not None:
        if isinstance(optimizer, torch.optim.Optimizer) and "_optimizer_step_pre_hooks" in vars(optimizer):
            parts = [part for part in vars(optimizer).values() if isinstance(part, torch.optim.Optimizer)]
            inner = [part for part in parts if part.param_groups is optimizer.param_groups]
            return inner[0] if len(inner) == 1 else optimizer
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def describe_optimizer(optimizer: torch.optim.Optimizer, variables: dict[str, torch.Tensor]) -> OptimizerFacts:
    """Describe an optimizer. variables: the parameters and buffers of the model by name."""
    names = {id(tensor): name for name, tensor in variables.items()}
    groups: list[ParameterGroup] = [
        {
            "parameters": [names[id(parameter)] for parameter in group["params"] if id(parameter) in names],
            "hyperparameters": list_plain_values({name: _to_number(group[name]) for name in group if name != "params"}),
        }
        for group in optimizer.param_groups
    ]
    updated = {name for group in groups for name in group["parameters"]}
    parameters = {name: tensor for name, tensor in variables.items() if isinstance(tensor, torch.nn.Parameter)}
    kind = type(optimizer)
    return {
        "name": optimizer.name if isinstance(optimizer, HandUpdates) else f"{kind.__module__}.{kind.__qualname__}",
        "groups": groups,
        "missing": [name for name in parameters if parameters[name].requires_grad and name not in updated],
        "frozen": [name for name in parameters if not parameters[name].requires_grad],
    }


def describe_scheduler(scheduler: object) -> dict[str, object]:
    """Describe a scheduler: its name, its hyperparameters and the steps that it has counted."""
    while hasattr(scheduler, "scheduler"):  # Accelerate's wrapper
        scheduler = scheduler.scheduler
    kind = type(scheduler)
    facts: dict[str, object] = {"name": f"{kind.__module__}.{kind.__qualname__}"}
    public = {name: value for name, value in vars(scheduler).items() if not name.startswith("_") and name != "verbose"}
    for function in public.pop("lr_lambdas", []):
        while isinstance(function, functools.partial):
            facts.update(list_plain_values(function.keywords))
            function = function.func
        facts["function"] = getattr(function, "__qualname__", type(function).__qualname__)
    return {**facts, **list_plain_values(public)}


def is_scheduled(optimizer: torch.optim.Optimizer) -> bool:
    """Check whether a scheduler was created for an optimizer. A scheduler wraps the optimizer's `step`."""
    return any(hasattr(optimizer.step, mark) for mark in ("_wrapped_by_lr_sched", "_with_counter"))  # by version


def read_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the current learning rate of each parameter group; NaN if a group has none."""
    return [float(group.get("lr", float("nan"))) for group in optimizer.param_groups]


def view_slots(optimizer: torch.optim.Optimizer, variables: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return the optimizer's arrays as slot/NAME/SLOT. The arrays may share memory with the optimizer.

    Args:
        optimizer: The optimizer.
        variables: The parameters and buffers of the model by name.
    """
    slots: dict[str, np.ndarray] = {}
    for name, tensor in variables.items():
        for slot, value in optimizer.state[tensor].items() if tensor in optimizer.state else ():
            if isinstance(value, torch.Tensor):
                slots[f"slot/{name}/{slot}"] = view_tensor(value)
            elif isinstance(value, (int, float)):
                slots[f"slot/{name}/{slot}"] = np.asarray(value)
    return slots


def _to_number(value: object) -> object:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
