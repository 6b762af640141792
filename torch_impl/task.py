"""The losses of a batch's examples, and how well they are predicted, by task."""

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
from common.map.factory import find_factory

PerExample = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # outputs and labels [n, ...] to [n]


@dataclass(frozen=True)
class TaskFunctions:
    """losses: of each example. metric: what is right of each, or how far it is off: see common.config.tasks."""

    losses: PerExample
    metric: PerExample


def build_task_functions(task: TaskSettings) -> TaskFunctions:
    """The functions of a task. Raises UserError where a user's own is not found."""
    if isinstance(task, ClassificationSettings):
        return _classification(task)
    if isinstance(task, BinarySettings):
        return _binary(task)
    if isinstance(task, RegressionSettings):
        return _regression(task)
    if isinstance(task, CustomTaskSettings):
        return _custom(task)
    return _language_model()


def _classification(task: ClassificationSettings) -> TaskFunctions:
    """labels: classes [n], or a probability of each [n, classes]."""

    def losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if labels.dim() == 2:
            labels = labels.to(outputs.dtype)
        return cross_entropy(outputs, labels, reduction="none", label_smoothing=task.label_smoothing)

    def correct(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return outputs.argmax(-1) == (labels if labels.dim() == 1 else labels.argmax(-1))

    return TaskFunctions(losses, correct)


def _binary(task: BinarySettings) -> TaskFunctions:
    """The mean over an example's answers."""

    def losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        outputs, labels = _rows(outputs), _rows(labels).to(outputs.dtype)
        smooth = labels * (1 - task.label_smoothing) + task.label_smoothing / 2
        return binary_cross_entropy_with_logits(outputs, smooth, reduction="none").mean(1)

    def correct(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return ((_rows(outputs) > 0) == (_rows(labels) > 0.5)).double().mean(1)

    return TaskFunctions(losses, correct)


def _regression(task: RegressionSettings) -> TaskFunctions:
    """The mean over an example's numbers."""

    def distance(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (_rows(outputs) - _rows(labels).to(outputs.dtype)).abs()

    def losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        off = distance(outputs, labels)
        if task.loss == "mse":
            return off.square().mean(1)
        if task.loss == "mae":
            return off.mean(1)
        near = off.clamp(max=task.delta)
        return (near.square() / 2 + task.delta * (off - near)).mean(1)

    return TaskFunctions(losses, lambda outputs, labels: distance(outputs, labels).mean(1))


def _language_model() -> TaskFunctions:
    """The sum over an example's tokens. labels: [n, tokens]; those below 0 do not count."""

    def losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        counted = labels.where(labels >= 0, -1)
        return (
            cross_entropy(outputs.flatten(0, 1), counted.flatten(), reduction="none", ignore_index=-1)
            .view_as(labels)
            .sum(1)
        )

    def correct(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(-1) == labels).sum(1)

    return TaskFunctions(losses, correct)


def _custom(task: CustomTaskSettings) -> TaskFunctions:
    assert task.torch is not None
    function = find_factory("task.torch", task.torch)
    return TaskFunctions(function, lambda outputs, labels: outputs.new_zeros(len(outputs)))


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """A row for each example."""
    return tensor.reshape(len(tensor), -1)
