"""The computation of one training step, and of an evaluation over all batches.

A replica computes its shard of a global batch as one micro-batch or more. The weight of an example is its weight in the
loss. Rows that fill up a batch have the weight 0.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from common.data.batches import GlobalBatch
from common.metrics.predictions import PREDICTION_PLACES, collect_predictions
from common.training.strategy import Evaluation
from tf_impl.predictions import append_predictions
from tf_impl.task import PerExample, TaskFunctions

# Arrays of a micro-batch that the model does not read
NOT_INPUTS = ("labels", "weights", "batch_places", *PREDICTION_PLACES)
MicroBatch = dict[str, tf.Tensor]  # inputs, labels and weights by name; a shard is a list of micro-batches
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices  # IndexedSlices for an embedding


def compute_outputs(model: keras.Model, batch: MicroBatch, training: bool) -> tf.Tensor:
    """Return the model's outputs [n, ...], at least float32. For precision=bfloat16 its dtype policy computes them."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in NOT_INPUTS}
    outputs = model(inputs, training=training)
    return outputs if outputs.dtype == tf.float64 else tf.cast(outputs, tf.float32)


def compute_values(task: TaskFunctions, function: PerExample, outputs: tf.Tensor, batch: MicroBatch) -> tf.Tensor:
    """Return the losses or the metric of the examples of a micro-batch, [n] or [n, outputs].

    Args:
        task: The functions of the task.
        function: The function to apply: `task.losses` or `task.metric`.
        outputs: The outputs of the model.
        batch: The micro-batch.
    """
    if task.gather is None:
        return function(outputs, batch["labels"])
    # The index of each row in the global batch. A row that only fills up the batch gets any index: its weight is 0.
    rows = tf.argmax(tf.cast(batch["batch_places"] == tf.range(tf.shape(outputs)[0])[:, tf.newaxis], tf.int32), 1)
    return tf.gather(function(task.gather(outputs, batch["batch_places"]), batch["labels"]), rows)


def sum_losses(task: TaskFunctions, outputs: tf.Tensor, batch: MicroBatch) -> tf.Tensor:
    """Return the sum of the examples' losses, each multiplied by the example's weight: a scalar, or [outputs]."""
    return tf.reduce_sum(
        compute_values(task, task.losses, outputs, batch) * tf.cast(batch["weights"], outputs.dtype), 0
    )


def backward(
    model: keras.Model,
    task: TaskFunctions,
    shard: list[MicroBatch],
    loss_divisor: tf.Tensor,
    parameters: list[tf.Variable],
) -> tuple[tf.Tensor, list[Gradient]]:
    """Compute the gradients of a shard, summed over its micro-batches.

    Args:
        model: The model.
        task: The functions of the task.
        shard: The micro-batches of this replica.
        loss_divisor: The divisor of the sum of losses, `GlobalBatch.weight`.
        parameters: The variables to differentiate by.

    Returns:
        The shard's part of the mean loss over the global batch (the parts of all shards add up to the mean), and the
        gradient of each parameter. If there are several outputs, there is a part for each output, multiplied by the
        weight of the output, [outputs].
    """
    losses, gradients = [], []
    for micro_batch in shard:
        with tf.GradientTape() as tape:
            outputs = compute_outputs(model, micro_batch, training=True)
            loss = sum_losses(task, outputs, micro_batch) / tf.cast(loss_divisor, outputs.dtype)
        losses.append(loss)
        gradients.append(tape.gradient(loss, parameters, unconnected_gradients=tf.UnconnectedGradients.ZERO))
    if len(shard) == 1:
        return losses[0], gradients[0]
    return tf.add_n(losses), [tf.add_n(terms) for terms in zip(*gradients, strict=True)]


def compute_evaluation_sums(model: keras.Model, task: TaskFunctions, shard: list[MicroBatch]) -> tf.Tensor:
    """Return the weighted sums of losses and metrics over a shard, float64 [2], or [2 * outputs].

    The predictions for the examples follow, flat, if the global batch asks for them.
    """
    sums = []
    for micro_batch in shard:
        outputs = tf.cast(compute_outputs(model, micro_batch, training=False), tf.float64)
        metric = tf.cast(compute_values(task, task.metric, outputs, micro_batch), tf.float64) * micro_batch["weights"]
        batch_sums = tf.reshape(tf.stack([sum_losses(task, outputs, micro_batch), tf.reduce_sum(metric, 0)]), [-1])
        sums.append(append_predictions(batch_sums, outputs, micro_batch, task.predict_classes))
    return tf.add_n(sums)


def seed_dropout(model: keras.Model, step: int) -> None:
    """Seed Keras's own dropout masks in a new model, as if the model had been trained up to a step.

    Keras draws a mask from a seed and the number of earlier masks. Aligned dropout does not use Keras's masks.
    """
    for variable in model.non_trainable_variables:
        if variable.name == "seed_generator_state":
            variable.assign(variable + np.array([0, step - 1], variable.dtype))


def evaluate(batches: Iterable[GlobalBatch], compute_sums: Callable[[GlobalBatch], tf.Tensor]) -> Evaluation:
    """Evaluate every batch.

    Args:
        batches: The global batches.
        compute_sums: A function that returns `compute_evaluation_sums` of a global batch, summed over all replicas.
    """
    weight: float | np.ndarray = 0.0
    sums, count = tf.zeros([], tf.float64), 0
    gathered: list[tuple[GlobalBatch, tf.Tensor]] = []  # batches that ask for predictions, and their predictions
    for batch in batches:
        batch_sums, size = compute_sums(batch), 2 * np.size(batch.evaluation_weight)
        sums += batch_sums[:size]
        if batch.predictions:
            gathered.append((batch, batch_sums[size:]))
        weight = weight + batch.evaluation_weight
        count += batch.size
    summed_loss, summed_metric = sums.numpy().reshape(2, *np.shape(weight))
    predictions = collect_predictions([(batch, vector.numpy()) for batch, vector in gathered])
    return Evaluation(summed_loss, summed_metric, weight, count, predictions)
