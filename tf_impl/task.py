"""The losses of a batch's examples, and how well they are predicted, by task."""

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
from common.map.factory import find_factory

PerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # outputs and labels [n, ...] to [n]


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

    def losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if labels.shape.rank == 1 and not task.label_smoothing:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        classes = outputs.shape[-1]
        labels = tf.one_hot(labels, classes, dtype=outputs.dtype) if labels.shape.rank == 1 else labels
        smooth = tf.cast(labels, outputs.dtype) * (1 - task.label_smoothing) + task.label_smoothing / classes
        return tf.nn.softmax_cross_entropy_with_logits(smooth, outputs)

    def correct(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        classes = labels if labels.shape.rank == 1 else tf.argmax(labels, -1, tf.int32)
        return tf.argmax(outputs, -1, tf.int32) == tf.cast(classes, tf.int32)

    return TaskFunctions(losses, correct)


def _binary(task: BinarySettings) -> TaskFunctions:
    """The mean over an example's answers."""

    def losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        outputs, labels = _rows(outputs), tf.cast(_rows(labels), outputs.dtype)
        smooth = labels * (1 - task.label_smoothing) + task.label_smoothing / 2
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(smooth, outputs), 1)

    def correct(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        right = (_rows(outputs) > 0) == (tf.cast(_rows(labels), outputs.dtype) > 0.5)
        return tf.reduce_mean(tf.cast(right, tf.float64), 1)

    return TaskFunctions(losses, correct)


def _regression(task: RegressionSettings) -> TaskFunctions:
    """The mean over an example's numbers."""

    def distance(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.abs(_rows(outputs) - tf.cast(_rows(labels), outputs.dtype))

    def losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        off = distance(outputs, labels)
        if task.loss == "mse":
            return tf.reduce_mean(tf.square(off), 1)
        if task.loss == "mae":
            return tf.reduce_mean(off, 1)
        near = tf.minimum(off, task.delta)
        return tf.reduce_mean(tf.square(near) / 2 + task.delta * (off - near), 1)

    return TaskFunctions(losses, lambda outputs, labels: tf.reduce_mean(distance(outputs, labels), 1))


def _language_model() -> TaskFunctions:
    """The sum over an example's tokens. labels: [n, tokens]; those below 0 do not count."""

    def losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        found = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), outputs)
        return tf.reduce_sum(tf.where(labels >= 0, found, tf.zeros_like(found)), 1)

    def correct(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        right = tf.argmax(outputs, -1, tf.int32) == tf.cast(labels, tf.int32)
        return tf.reduce_sum(tf.cast(right, tf.float64), 1)

    return TaskFunctions(losses, correct)


def _custom(task: CustomTaskSettings) -> TaskFunctions:
    assert task.tf is not None
    function = find_factory("task.tf", task.tf)
    return TaskFunctions(function, lambda outputs, labels: tf.zeros(tf.shape(outputs)[:1], tf.float64))


def _rows(tensor: tf.Tensor) -> tf.Tensor:
    """A row for each example."""
    return tf.reshape(tensor, [tf.shape(tensor)[0], -1])
