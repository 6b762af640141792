"""Checks of the arguments of a recorder."""

from __future__ import annotations

from tf_impl.record.model_facts import find_layer_class
from tf_impl.record.optimizer_facts import check_optimizer


def check_arguments(model: object, optimizer: object, steps: object) -> None:
    """Raise ValueError if an argument is wrong."""
    find_layer_class(model)
    check_optimizer(optimizer)
    check_steps(steps)


def check_steps(steps: object) -> None:
    """Raise ValueError if the number of steps is wrong."""
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"steps={steps}: pass the number of optimizer steps to record, at least 1")
