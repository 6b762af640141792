"""The loss and the metric of each task, computed for every example of a batch."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from common.config.import_object import import_function
from common.config.task_kinds import ContrastiveSettings, MultiOutputSettings
from common.config.tasks import (
    BinarySettings,
    ClassificationSettings,
    ClassTaskSettings,
    CustomTaskSettings,
    RegressionSettings,
    TaskSettings,
)
from common.models.hf_config import HfConfig
from common.models.task_outputs import OutputLayout
from torch_impl.communication.replica_sums import SumOverReplicas
from torch_impl.losses import (
    compare_embeddings,
    compute_binary_dice,
    compute_binary_losses,
    compute_class_dice,
    compute_class_losses,
    compute_contrastive_losses,
    compute_regression_losses,
    compute_share_losses,
)
from torch_impl.predictions import PredictClasses, predict_classes

PerExample = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # outputs [n, ...] and labels [n, ...] to [n]
Gather = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # outputs and places of a shard to all examples' outputs


@dataclass(frozen=True)
class TaskFunctions:
    """The functions that define a task.

    Attributes:
        losses: The loss of each example [n], or of each of its outputs [n, outputs].
        metric: The metric of each example, in the shape of the losses: accuracy, the number of correct labels if each
            label has a loss of its own, absolute error (regression) or 0 (a custom task).
        gather: If the loss of an example depends on all other examples: a function of the outputs of a micro-batch and
            its `batch_places` that returns the outputs of all examples of the global batch, on every replica.
        predict_classes: A function of the outputs that returns the predicted classes; see `append_predictions`.
    """

    losses: PerExample
    metric: PerExample
    gather: Gather | None = None
    predict_classes: PredictClasses = predict_classes


def build_task_functions(
    task: TaskSettings,
    hf_config: HfConfig | None = None,
    make_sum_function: Callable[[], SumOverReplicas] = lambda: lambda tensor: tensor,
) -> TaskFunctions:
    """Return the functions of a task. Raise UserError if the user's own loss function cannot be imported.

    Args:
        task: The settings of the task.
        hf_config: The config of the model, with the layouts of several outputs.
        make_sum_function: Returns a function that sums a tensor over all replicas, for a task that compares examples.
    """
    if isinstance(task, ClassificationSettings):
        return _build_classification(task)
    if isinstance(task, BinarySettings):
        return _build_binary(task)
    if isinstance(task, RegressionSettings):
        return _build_regression(task)
    if isinstance(task, CustomTaskSettings):
        return _build_custom(task)
    if isinstance(task, MultiOutputSettings):
        assert hf_config is not None
        return _build_multi_output(task, hf_config["output_layouts"])
    if isinstance(task, ContrastiveSettings):
        assert hf_config is not None
        (layout,) = hf_config["output_layouts"]
        return _build_contrastive(task, OutputLayout(**layout), make_sum_function())
    return _build_language_model()


def _build_classification(task: ClassificationSettings) -> TaskFunctions:
    """Return the chosen loss and the accuracy.

    labels: classes [n] or [n, ...], or the share of each class [n, classes]. outputs: logits [..., classes]. If an
    example has several labels, `_weigh_labels` decides how they count.
    """

    def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if labels.is_floating_point():
            return compute_share_losses(task, outputs, labels)
        if labels.dim() == 1:
            return compute_class_losses(task, outputs, labels)
        weights, valid_labels = _weigh_labels(task, labels, outputs.dtype)
        logits = outputs.reshape(*valid_labels.shape, outputs.shape[-1])
        if task.loss == "dice":
            return compute_class_dice(task, logits, valid_labels, weights)
        losses = compute_class_losses(task, logits.flatten(0, 1), valid_labels.flatten())
        return (losses.reshape(weights.shape) * weights).sum(1)

    def compute_accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if labels.is_floating_point():
            return outputs.argmax(-1) == labels.argmax(-1)
        if labels.dim() == 1:
            return outputs.argmax(-1) == labels
        return _sum_correct(task, _flatten_examples(outputs.argmax(-1) == labels), labels)

    return TaskFunctions(compute_losses, compute_accuracy)


def _build_binary(task: BinarySettings) -> TaskFunctions:
    """Return the chosen loss and the accuracy. `_weigh_labels` decides how several labels of an example count."""

    def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = _flatten_examples(outputs)
        weights, valid_labels = _weigh_labels(task, labels, outputs.dtype)
        valid_labels = valid_labels.to(outputs.dtype)
        if task.loss == "dice":
            return compute_binary_dice(task, logits, valid_labels, weights)
        losses = compute_binary_losses(task, logits, valid_labels)
        return (losses * weights).sum(1) if _has_label_losses(task, labels) else losses.mean(1)

    def compute_accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        is_correct = (_flatten_examples(outputs) > 0) == (_flatten_examples(labels) > 0.5)
        return _sum_correct(task, is_correct, labels)

    return TaskFunctions(compute_losses, compute_accuracy)


def _build_regression(task: RegressionSettings) -> TaskFunctions:
    """Return the chosen loss and the absolute error, as means over the numbers of an example."""

    def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        numbers = _flatten_examples(labels).to(outputs.dtype)
        return compute_regression_losses(task, _flatten_examples(outputs), numbers).mean(1)

    def compute_error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        predictions = outputs.exp() if task.loss == "poisson" else outputs
        return (_flatten_examples(predictions) - _flatten_examples(labels).to(outputs.dtype)).abs().mean(1)

    return TaskFunctions(compute_losses, compute_error)


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
    """Return the user's loss function, and a metric that is always 0."""
    assert task.torch is not None
    function = import_function("task.torch", task.torch)
    return TaskFunctions(function, lambda outputs, labels: outputs.new_zeros(len(outputs)))


def _build_multi_output(task: MultiOutputSettings, layouts: Sequence[Mapping[str, Any]]) -> TaskFunctions:
    """Return the losses and the metrics [n, outputs] of several outputs.

    The outputs of an example are concatenated, and so are its labels.
    layouts: The fields of an `OutputLayout` for each output.
    """
    functions = [build_task_functions(output.task) for output in task.tasks]
    output_layouts = [OutputLayout(**layout) for layout in layouts]

    def split_outputs(outputs: torch.Tensor) -> Iterator[torch.Tensor]:
        parts = outputs.split([math.prod(layout.output) for layout in output_layouts], 1)
        for layout, output in zip(output_layouts, parts, strict=True):
            yield output.unflatten(1, layout.output or [1])

    def split(outputs: torch.Tensor, labels: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        label_parts = labels.split([math.prod(layout.labels) for layout in output_layouts], 1)
        for layout, output, label in zip(output_layouts, split_outputs(outputs), label_parts, strict=True):
            dtype = torch.int64 if layout.is_integer else outputs.dtype
            yield output, label.unflatten(1, layout.labels).to(dtype)

    def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        pairs = zip(functions, split(outputs, labels), strict=True)
        return torch.stack([output_functions.losses(*arguments) for output_functions, arguments in pairs], 1)

    def compute_metrics(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        pairs = zip(functions, split(outputs, labels), strict=True)
        return torch.stack([output_functions.metric(*arguments).double() for output_functions, arguments in pairs], 1)

    def predict_all_classes(outputs: torch.Tensor) -> torch.Tensor:
        pairs = zip(task.tasks, split_outputs(outputs), strict=True)
        parts = [
            output.argmax(-1).to(outputs.dtype) if isinstance(settings.task, ClassificationSettings) else output
            for settings, output in pairs
        ]
        return torch.cat([_flatten_examples(part) for part in parts], 1)

    return TaskFunctions(compute_losses, compute_metrics, predict_classes=predict_all_classes)


def _build_contrastive(
    task: ContrastiveSettings, layout: OutputLayout, sum_over_replicas: SumOverReplicas
) -> TaskFunctions:
    """Return the contrastive loss, and whether the partner of an example has the highest score of all candidates."""

    def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return compute_contrastive_losses(task, outputs.unflatten(1, layout.output))

    def compute_accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = compare_embeddings(task, outputs.unflatten(1, layout.output))
        return scores.argmax(1) == torch.arange(len(scores), device=scores.device)

    def gather(outputs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        selected = outputs[places.clamp(min=0)]
        return sum_over_replicas(torch.where(places[:, None] >= 0, selected, torch.zeros_like(selected)))

    return TaskFunctions(compute_losses, compute_accuracy, gather)


def _flatten_examples(tensor: torch.Tensor) -> torch.Tensor:
    """Reshape a tensor [n, ...] to [n, values]."""
    return tensor.reshape(len(tensor), -1)


def _has_label_losses(task: ClassTaskSettings, labels: torch.Tensor) -> bool:
    return task.has_label_losses(labels.dim(), not labels.is_floating_point())


def _weigh_labels(
    task: ClassTaskSettings, labels: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight of each label in the loss, and the labels with 0 in place of ignored ones, both [n, labels].

    The weights equal the result of `common.data.label_weights.weigh_labels`.
    """
    labels = _flatten_examples(labels)
    if task.ignore_label is None:
        weights, valid_labels = torch.ones_like(labels, dtype=dtype), labels
    else:
        is_labelled = labels != task.ignore_label
        weights, valid_labels = is_labelled.to(dtype), labels.where(is_labelled, 0)
    if task.class_weights is None:
        return weights, valid_labels
    class_weights = torch.tensor(task.class_weights, dtype=dtype).to(labels.device, non_blocking=True)
    if isinstance(task, BinarySettings):
        answers = valid_labels.to(dtype)
        return weights * (class_weights[0] * (1 - answers) + class_weights[1] * answers), valid_labels
    return weights * class_weights[valid_labels], valid_labels


def _sum_correct(task: ClassTaskSettings, is_correct: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the weighted number of correct labels of each example, or their share if an example has one loss.

    is_correct: whether each label [n, labels] is predicted correctly.
    """
    weights, _ = _weigh_labels(task, labels, torch.float64)
    correct = (is_correct * weights).sum(1)
    if _has_label_losses(task, labels):
        return correct
    total = weights.sum(1)
    return correct / torch.where(total > 0, total, 1)
