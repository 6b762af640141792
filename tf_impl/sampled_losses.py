"""Losses of a user's loss function on sample examples. Lockstep checks them before training."""

import numpy as np
import tensorflow as tf

from common.config.tasks import TaskSettings
from common.errors import UserError, describe_error
from tf_impl.batches import to_tensors
from tf_impl.task import PerExample, build_task_functions
from tf_impl.traced_step import compile_losses


def compute_losses(
    task: TaskSettings, outputs: tf.Tensor, labels: np.ndarray, any_batch_size: bool
) -> dict[str, np.ndarray]:
    """Return the losses of the examples.

    Args:
        task: The settings of the task.
        outputs: The model's output for the task, float64 [n, ...].
        labels: The labels [n, ...] of the examples.
        any_batch_size: Whether to trace the loss function for any number of examples.

    Returns:
        The losses by kind: "float32" are computed from float32 outputs, as in training, "float64" from float64 outputs,
        and "copies I" from a batch of n copies of example I, in float64. If the loss of example I depends on the other
        examples in its batch, its loss in "copies I" differs from its loss in "float64".

    Raises:
        UserError: The user's loss function failed.
    """
    losses, count = compile_losses(build_task_functions(task).losses, any_batch_size), len(labels)
    (batch,) = to_tensors([{"labels": labels}])
    batches = {"float32": (tf.cast(outputs, tf.float32), batch["labels"]), "float64": (outputs, batch["labels"])}
    for index in range(count):
        batches[f"copies {index}"] = (
            tf.gather(outputs, [index] * count),
            tf.gather(batch["labels"], [index] * count),
        )
    return {name: _compute(losses, *arguments) for name, arguments in batches.items()}


def _compute(losses: PerExample, outputs: tf.Tensor, labels: tf.Tensor) -> np.ndarray:
    try:
        values = losses(outputs, labels)
    except Exception as error:
        raise UserError(f"task.tf: the loss function raised {describe_error(error)}") from error
    if not isinstance(values, tf.Tensor):
        raise UserError(f"task.tf: the loss function returns {type(values).__name__}; return a tensor")
    return values.numpy()
