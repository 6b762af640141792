"""Losses of a user's loss function on sample examples. Lockstep checks them before training."""

import numpy as np
import torch

from common.config.tasks import TaskSettings
from common.errors import UserError, describe_error
from torch_impl.batches import to_tensors
from torch_impl.task import PerExample, build_task_functions


def compute_losses(task: TaskSettings, outputs: torch.Tensor, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return the losses of the examples.

    Args:
        task: The settings of the task.
        outputs: The model's output for the task, float64 [n, ...].
        labels: The labels [n, ...] of the examples.

    Returns:
        The losses by kind: "float32" are computed from float32 outputs, as in training, "float64" from float64 outputs,
        and "copies I" from a batch of n copies of example I, in float64. If the loss of example I depends on the other
        examples in its batch, its loss in "copies I" differs from its loss in "float64".

    Raises:
        UserError: The user's loss function failed.
    """
    losses, count = build_task_functions(task).losses, len(labels)
    (batch,) = to_tensors([{"labels": labels}], torch.device("cpu"))
    batches = {"float32": (outputs.float(), batch["labels"]), "float64": (outputs, batch["labels"])}
    for index in range(count):
        batches[f"copies {index}"] = (outputs[[index] * count], batch["labels"][[index] * count])
    return {name: _compute(losses, *arguments) for name, arguments in batches.items()}


def _compute(losses: PerExample, outputs: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    try:
        values = losses(outputs, labels)
    except Exception as error:
        raise UserError(f"task.torch: the loss function raised {describe_error(error)}") from error
    if not isinstance(values, torch.Tensor):
        raise UserError(f"task.torch: the loss function returns {type(values).__name__}; return a tensor")
    return values.detach().numpy()
