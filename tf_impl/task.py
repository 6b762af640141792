"""The loss and the metric of each task, computed for every example of a batch."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

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
from tf_impl.losses import (
    compare_embeddings,
    compute_binary_dice,
    compute_binary_losses,
    compute_class_dice,
    compute_class_losses,
    compute_contrastive_losses,
    compute_regression_losses,
    compute_share_losses,
)
from tf_impl.predictions import PredictClasses, predict_classes

PerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # outputs [n, ...] and labels [n, ...] to [n]
Gather = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # outputs and places of a shard to all examples' outputs


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


def build_task_functions(task: TaskSettings, hf_config: HfConfig | None = None) -> TaskFunctions:
    """Return the functions of a task. Raise UserError if the user's own loss function cannot be imported.

    Args:
        task: The settings of the task.
        hf_config: The config of the model, with the layouts of several outputs.
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
        return _build_contrastive(task, OutputLayout(**layout))
    return _build_language_model()


def _build_classification(task: ClassificationSettings) -> TaskFunctions:
    """Return the chosen loss and the accuracy.

    labels: classes [n] or [n, ...], or the share of each class [n, classes]. outputs: logits [..., classes]. If an
    example has several labels, `_weigh_labels` decides how they count.
    """

    def compute_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if labels.dtype.is_floating:
            return compute_share_losses(task, outputs, labels)
        if labels.shape.rank == 1:
            return compute_class_losses(task, outputs, labels)
        weights, valid_labels = _weigh_labels(task, labels, outputs.dtype)
        logits = tf.reshape(outputs, tf.concat([tf.shape(valid_labels), outputs.shape[-1:]], 0))
        if task.loss == "dice":
            return compute_class_dice(task, logits, valid_labels, weights)
        losses = compute_class_losses(task, tf.reshape(logits, [-1, outputs.shape[-1]]), tf.reshape(valid_labels, [-1]))
        return tf.reduce_sum(tf.reshape(losses, tf.shape(weights)) * weights, 1)

    def compute_accuracy(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if labels.dtype.is_floating:
            return _find_classes(outputs) == _find_classes(labels)
        if labels.shape.rank == 1:
            return _find_classes(outputs) == tf.cast(labels, tf.int32)
        is_correct = _find_classes(outputs) == tf.cast(labels, tf.int32)
        return _sum_correct(task, _flatten_examples(is_correct), labels)

    return TaskFunctions(compute_losses, compute_accuracy)


def _build_binary(task: BinarySettings) -> TaskFunctions:
    """Return the chosen loss and the accuracy. `_weigh_labels` decides how several labels of an example count."""

    def compute_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = _flatten_examples(outputs)
        weights, valid_labels = _weigh_labels(task, labels, outputs.dtype)
        valid_labels = tf.cast(valid_labels, outputs.dtype)
        if task.loss == "dice":
            return compute_binary_dice(task, logits, valid_labels, weights)
        losses = compute_binary_losses(task, logits, valid_labels)
        return tf.reduce_sum(losses * weights, 1) if _has_label_losses(task, labels) else tf.reduce_mean(losses, 1)

    def compute_accuracy(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        is_correct = (_flatten_examples(outputs) > 0) == (tf.cast(_flatten_examples(labels), outputs.dtype) > 0.5)
        return _sum_correct(task, is_correct, labels)

    return TaskFunctions(compute_losses, compute_accuracy)


def _build_regression(task: RegressionSettings) -> TaskFunctions:
    """Return the chosen loss and the absolute error, as means over the numbers of an example."""

    def compute_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        numbers = tf.cast(_flatten_examples(labels), outputs.dtype)
        return tf.reduce_mean(compute_regression_losses(task, _flatten_examples(outputs), numbers), 1)

    def compute_error(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        predictions = tf.exp(outputs) if task.loss == "poisson" else outputs
        numbers = tf.cast(_flatten_examples(labels), outputs.dtype)
        return tf.reduce_mean(tf.abs(_flatten_examples(predictions) - numbers), 1)

    return TaskFunctions(compute_losses, compute_error)


def _build_language_model() -> TaskFunctions:
    """Return cross-entropy and the number of correct tokens, as sums over the tokens of an example.

    labels: [n, tokens]; tokens with a label below 0 do not count.
    """

    def compute_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        token_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), outputs)
        return tf.reduce_sum(tf.where(labels >= 0, token_losses, tf.zeros_like(token_losses)), 1)

    def count_correct(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        is_correct = tf.argmax(outputs, -1, tf.int32) == tf.cast(labels, tf.int32)
        return tf.reduce_sum(tf.cast(is_correct, tf.float64), 1)

    return TaskFunctions(compute_losses, count_correct)


def _build_custom(task: CustomTaskSettings) -> TaskFunctions:
    """Return the user's loss function, and a metric that is always 0."""
    assert task.tf is not None
    function = import_function("task.tf", task.tf)
    return TaskFunctions(function, lambda outputs, labels: tf.zeros(tf.shape(outputs)[:1], tf.float64))


def _build_multi_output(task: MultiOutputSettings, layouts: Sequence[Mapping[str, Any]]) -> TaskFunctions:
    """Return the losses and the metrics [n, outputs] of several outputs.

    The outputs of an example are concatenated, and so are its labels.
    layouts: The fields of an `OutputLayout` for each output.
    """
    functions = [build_task_functions(output.task) for output in task.tasks]
    output_layouts = [OutputLayout(**layout) for layout in layouts]

    def split_outputs(outputs: tf.Tensor) -> Iterator[tf.Tensor]:
        parts = tf.split(outputs, [math.prod(layout.output) for layout in output_layouts], 1)
        for layout, output in zip(output_layouts, parts, strict=True):
            yield tf.reshape(output, [-1, *layout.output])

    def split(outputs: tf.Tensor, labels: tf.Tensor) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        label_parts = tf.split(labels, [math.prod(layout.labels) for layout in output_layouts], 1)
        for layout, output, label in zip(output_layouts, split_outputs(outputs), label_parts, strict=True):
            dtype = tf.int32 if layout.is_integer else outputs.dtype
            yield output, tf.cast(tf.reshape(label, [-1, *layout.labels]), dtype)

    def compute_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        pairs = zip(functions, split(outputs, labels), strict=True)
        return tf.stack([output_functions.losses(*arguments) for output_functions, arguments in pairs], 1)

    def compute_metrics(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        pairs = zip(functions, split(outputs, labels), strict=True)
        return tf.stack(
            [tf.cast(output_functions.metric(*arguments), tf.float64) for output_functions, arguments in pairs], 1
        )

    def predict_all_classes(outputs: tf.Tensor) -> tf.Tensor:
        pairs = zip(task.tasks, split_outputs(outputs), strict=True)
        parts = [
            tf.cast(_find_classes(output), outputs.dtype)
            if isinstance(settings.task, ClassificationSettings)
            else output
            for settings, output in pairs
        ]
        return tf.concat([_flatten_examples(part) for part in parts], 1)

    return TaskFunctions(compute_losses, compute_metrics, predict_classes=predict_all_classes)


def _build_contrastive(task: ContrastiveSettings, layout: OutputLayout) -> TaskFunctions:
    """Return the contrastive loss, and whether the partner of an example has the highest score of all candidates."""

    def compute_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return compute_contrastive_losses(task, tf.reshape(outputs, [-1, *layout.output]))

    def compute_accuracy(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        scores = compare_embeddings(task, tf.reshape(outputs, [-1, *layout.output]))
        return _find_classes(scores) == tf.range(tf.shape(scores)[0])

    def gather(outputs: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        selected = tf.gather(outputs, tf.maximum(places, 0))
        here = tf.where(places[:, tf.newaxis] >= 0, selected, tf.zeros_like(selected))
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

    return TaskFunctions(compute_losses, compute_accuracy, gather)


def _flatten_examples(tensor: tf.Tensor) -> tf.Tensor:
    """Reshape a tensor [n, ...] to [n, values]."""
    return tf.reshape(tensor, [tf.shape(tensor)[0], -1])


def _has_label_losses(task: ClassTaskSettings, labels: tf.Tensor) -> bool:
    return task.has_label_losses(labels.shape.rank, not labels.dtype.is_floating)


def _weigh_labels(task: ClassTaskSettings, labels: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the weight of each label in the loss, and the labels with 0 in place of ignored ones, both [n, labels].

    The weights equal the result of `common.data.label_weights.weigh_labels`.
    """
    labels = _flatten_examples(labels)
    if task.ignore_label is None:
        weights, valid_labels = tf.ones_like(labels, dtype), labels
    else:
        is_labelled = labels != tf.cast(task.ignore_label, labels.dtype)
        weights, valid_labels = tf.cast(is_labelled, dtype), tf.where(is_labelled, labels, tf.zeros_like(labels))
    if task.class_weights is None:
        return weights, valid_labels
    class_weights = tf.constant(task.class_weights, dtype)
    if isinstance(task, BinarySettings):
        answers = tf.cast(valid_labels, dtype)
        return weights * (class_weights[0] * (1 - answers) + class_weights[1] * answers), valid_labels
    return weights * tf.gather(class_weights, valid_labels), valid_labels


def _sum_correct(task: ClassTaskSettings, is_correct: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the weighted number of correct labels of each example, or their share if an example has one loss.

    is_correct: whether each label [n, labels] is predicted correctly.
    """
    weights, _ = _weigh_labels(task, labels, tf.float64)
    correct = tf.reduce_sum(tf.cast(is_correct, tf.float64) * weights, 1)
    if _has_label_losses(task, labels):
        return correct
    total = tf.reduce_sum(weights, 1)
    return correct / tf.where(total > 0, total, tf.ones_like(total))


def _find_classes(shares: tf.Tensor) -> tf.Tensor:
    """Return the class with the largest logit or share, int32. shares: [..., classes]."""
    return tf.argmax(shares, -1, tf.int32)
