"""The loss and the metric of each task, computed for every example of a batch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from common.config.tasks import (
    BinarySettings,
    ClassificationSettings,
    CustomTaskSettings,
    RegressionSettings,
    TaskSettings,
)
from common.map.factory import import_factory

PerExample = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # outputs [n, ...] and labels [n, ...] to [n]


@dataclass(frozen=True)
class TaskFunctions:
    """The functions that define a task.

    Attributes:
        losses: The loss of each example.
        metric: The metric of each example: accuracy, correct tokens (language model), absolute error (regression) or 0
            (a custom task).
    """

    losses: PerExample
    metric: PerExample


def build_task_functions(task: TaskSettings) -> TaskFunctions:
    """Return the functions of a task. Raise UserError if the user's own loss function cannot be imported."""
    if isinstance(task, ClassificationSettings):
        return _build_classification(task)
    if isinstance(task, BinarySettings):
        return _build_binary(task)
    if isinstance(task, RegressionSettings):
        return _build_regression(task)
    if isinstance(task, CustomTaskSettings):
        return _build_custom(task)
    return _build_language_model()


def _build_classification(task: ClassificationSettings) -> TaskFunctions:
    """Return cross-entropy and accuracy. labels: classes [n], or the probability of each class [n, classes]."""

    def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if labels.dim() == 2:
            labels = labels.to(outputs.dtype)
        return cross_entropy(outputs, labels, reduction="none", label_smoothing=task.label_smoothing)

    def compute_accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return outputs.argmax(-1) == (labels if labels.dim() == 1 else labels.argmax(-1))

    return TaskFunctions(compute_losses, compute_accuracy)


def _build_binary(task: BinarySettings) -> TaskFunctions:
    """Return binary cross-entropy and accuracy, as means over the yes-or-no answers of an example."""

    def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        outputs, labels = _flatten_examples(outputs), _flatten_examples(labels).to(outputs.dtype)
        smoothed = labels * (1 - task.label_smoothing) + task.label_smoothing / 2
        return binary_cross_entropy_with_logits(outputs, smoothed, reduction="none").mean(1)

    def compute_accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return ((_flatten_examples(outputs) > 0) == (_flatten_examples(labels) > 0.5)).double().mean(1)

    return TaskFunctions(compute_losses, compute_accuracy)


def _build_regression(task: RegressionSettings) -> TaskFunctions:
    """Return the chosen loss and the absolute error, as means over the numbers of an example."""

    def absolute_error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (_flatten_examples(outputs) - _flatten_examples(labels).to(outputs.dtype)).abs()

    def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        error = absolute_error(outputs, labels)
        if task.loss == "mse":
            return error.square().mean(1)
        if task.loss == "mae":
            return error.mean(1)
        clipped = error.clamp(max=task.delta)
        return (clipped.square() / 2 + task.delta * (error - clipped)).mean(1)

    return TaskFunctions(compute_losses, lambda outputs, labels: absolute_error(outputs, labels).mean(1))


def _build_language_model() -> TaskFunctions:
    """Return cross-entropy and the number of correct tokens, as sums over the tokens of an example.

    labels: [n, tokens]; tokens with a label below 0 do not count.
    """

    def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        targets = labels.where(labels >= 0, -1)
        return (
            cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-1)
            .view_as(labels)
            .sum(1)
        )

    def count_correct(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(-1) == labels).sum(1)

    return TaskFunctions(compute_losses, count_correct)


def _build_custom(task: CustomTaskSettings) -> TaskFunctions:
    """Return the user's loss function. There is no metric: it is always 0."""
    assert task.torch is not None
    function = import_factory("task.torch", task.torch)
    return TaskFunctions(function, lambda outputs, labels: outputs.new_zeros(len(outputs)))


def _flatten_examples(tensor: torch.Tensor) -> torch.Tensor:
    """Reshape a tensor [n, ...] to [n, values]."""
    return tensor.reshape(len(tensor), -1)
