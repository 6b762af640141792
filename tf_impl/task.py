"""The loss and the metric of each task, computed for every example of a batch."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from common.config.tasks import (
    BinarySettings,
    ClassificationSettings,
    CustomTaskSettings,
    RegressionSettings,
    TaskSettings,
)
from common.map.factory import import_factory

PerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # outputs [n, ...] and labels [n, ...] to [n]


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

    def compute_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if labels.shape.rank == 1 and not task.label_smoothing:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        classes = outputs.shape[-1]
        labels = tf.one_hot(labels, classes, dtype=outputs.dtype) if labels.shape.rank == 1 else labels
        smoothed = tf.cast(labels, outputs.dtype) * (1 - task.label_smoothing) + task.label_smoothing / classes
        return tf.nn.softmax_cross_entropy_with_logits(smoothed, outputs)

    def compute_accuracy(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        classes = labels if labels.shape.rank == 1 else tf.argmax(labels, -1, tf.int32)
        return tf.argmax(outputs, -1, tf.int32) == tf.cast(classes, tf.int32)

    return TaskFunctions(compute_losses, compute_accuracy)


def _build_binary(task: BinarySettings) -> TaskFunctions:
    """Return binary cross-entropy and accuracy, as means over the yes-or-no answers of an example."""

    def compute_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        outputs, labels = _flatten_examples(outputs), tf.cast(_flatten_examples(labels), outputs.dtype)
        smoothed = labels * (1 - task.label_smoothing) + task.label_smoothing / 2
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(smoothed, outputs), 1)

    def compute_accuracy(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        is_correct = (_flatten_examples(outputs) > 0) == (tf.cast(_flatten_examples(labels), outputs.dtype) > 0.5)
        return tf.reduce_mean(tf.cast(is_correct, tf.float64), 1)

    return TaskFunctions(compute_losses, compute_accuracy)


def _build_regression(task: RegressionSettings) -> TaskFunctions:
    """Return the chosen loss and the absolute error, as means over the numbers of an example."""

    def absolute_error(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.abs(_flatten_examples(outputs) - tf.cast(_flatten_examples(labels), outputs.dtype))

    def compute_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        error = absolute_error(outputs, labels)
        if task.loss == "mse":
            return tf.reduce_mean(tf.square(error), 1)
        if task.loss == "mae":
            return tf.reduce_mean(error, 1)
        clipped = tf.minimum(error, task.delta)
        return tf.reduce_mean(tf.square(clipped) / 2 + task.delta * (error - clipped), 1)

    return TaskFunctions(compute_losses, lambda outputs, labels: tf.reduce_mean(absolute_error(outputs, labels), 1))


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
    """Return the user's loss function. There is no metric: it is always 0."""
    assert task.tf is not None
    function = import_factory("task.tf", task.tf)
    return TaskFunctions(function, lambda outputs, labels: tf.zeros(tf.shape(outputs)[:1], tf.float64))


def _flatten_examples(tensor: tf.Tensor) -> tf.Tensor:
    """Reshape a tensor [n, ...] to [n, values]."""
    return tf.reshape(tensor, [tf.shape(tensor)[0], -1])
