"""What a step computes of a batch, and an evaluation of all batches."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.data.batches import GlobalBatch
from common.training.strategy import Evaluation
from tf_impl.task import TaskFunctions

MicroBatch = dict[str, tf.Tensor]


def compute_outputs(model: keras.Model, batch: MicroBatch, training: bool) -> tf.Tensor:
    """The model's outputs [n, ...], at least float32; its dtype policy computes them in bfloat16."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "weights")}
    outputs = model(inputs, training=training)
    return outputs if outputs.dtype == tf.float64 else tf.cast(outputs, tf.float32)


def sum_losses(task: TaskFunctions, outputs: tf.Tensor, batch: MicroBatch) -> tf.Tensor:
    """The losses of the examples, each times its weight; a scalar."""
    return tf.reduce_sum(task.losses(outputs, batch["labels"]) * tf.cast(batch["weights"], outputs.dtype))


def backward(
    model: keras.Model, task: TaskFunctions, shard: list[MicroBatch], weight: tf.Tensor, parameters: list[tf.Tensor]
) -> tuple[tf.Tensor, list[Any]]:
    """The gradients of a shard, added up over its micro-batches. Returns the shard's loss and them.

    weight: of the global batch, whose mean loss is the sum of its shards'.
    """
    losses, gradients = [], []
    for part in shard:
        with tf.GradientTape() as tape:
            outputs = compute_outputs(model, part, training=True)
            loss = sum_losses(task, outputs, part) / tf.cast(weight, outputs.dtype)
        losses.append(loss)
        gradients.append(tape.gradient(loss, parameters))
    if len(shard) == 1:
        return losses[0], gradients[0]
    return tf.add_n(losses), [tf.add_n(parts) for parts in zip(*gradients, strict=True)]


def compute_evaluation_sums(model: keras.Model, task: TaskFunctions, shard: list[MicroBatch]) -> tf.Tensor:
    """The summed loss and the summed metric of a shard, float64 [2]."""
    sums = []
    for part in shard:
        outputs = tf.cast(compute_outputs(model, part, training=False), tf.float64)
        metric = tf.cast(task.metric(outputs, part["labels"]), tf.float64) * part["weights"]
        sums.append(tf.stack([sum_losses(task, outputs, part), tf.reduce_sum(metric)]))
    return tf.add_n(sums)


def seed_dropout(model: keras.Model, step: int) -> None:
    """Seed a new model's dropout for update `step`, as if it had trained until then: Keras counts its draws."""
    for variable in model.non_trainable_variables:
        if variable.name == "seed_generator_state":
            variable.assign(variable + np.array([0, step - 1], variable.dtype))


def evaluate(batches: Iterable[GlobalBatch], sums_of: Callable[[GlobalBatch], tf.Tensor]) -> Evaluation:
    """Evaluate every batch. sums_of: the `evaluation_sums` of one, over all replicas."""
    sums, weight, count = tf.zeros([2], tf.float64), 0.0, 0
    for batch in batches:
        sums += sums_of(batch)
        weight += batch.weight
        count += batch.size
    summed_loss, summed_metric = sums.numpy().tolist()
    return Evaluation(summed_loss, summed_metric, weight, count)
