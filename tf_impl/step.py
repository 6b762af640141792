"""What a step computes of a batch, and an evaluation of all batches."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.data.batches import GlobalBatch
from common.training.strategy import Evaluation

Batch = dict[str, tf.Tensor]


def compute_logits(model: keras.Model, batch: Batch, training: bool) -> tf.Tensor:
    """Logits [n, classes], at least float32; the model's dtype policy computes them in bfloat16."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "weights")}
    logits = model(inputs, training=training)
    return logits if logits.dtype == tf.float64 else tf.cast(logits, tf.float32)


def summed_loss(logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Cross-entropy summed over the examples, each times its weight; a scalar."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["labels"], logits)
    return tf.reduce_sum(losses * tf.cast(batch["weights"], logits.dtype))


def backward(
    model: keras.Model, shard: list[Batch], size: tf.Tensor, parameters: list[tf.Tensor]
) -> tuple[tf.Tensor, list[Any]]:
    """The gradients of a shard, added up over its micro-batches. Returns the shard's loss and them.

    size: of the global batch, whose mean loss is the sum of its shards'.
    """
    losses, gradients = [], []
    for part in shard:
        with tf.GradientTape() as tape:
            logits = compute_logits(model, part, training=True)
            loss = summed_loss(logits, part) / tf.cast(size, logits.dtype)
        losses.append(loss)
        gradients.append(tape.gradient(loss, parameters))
    if len(shard) == 1:
        return losses[0], gradients[0]
    return tf.add_n(losses), [tf.add_n(parts) for parts in zip(*gradients, strict=True)]


def evaluation_sums(model: keras.Model, shard: list[Batch]) -> tf.Tensor:
    """Summed loss and number of correct answers of a shard, float64 [2]."""
    sums = []
    for part in shard:
        logits = compute_logits(model, part, training=False)
        correct = tf.cast(tf.argmax(logits, -1, tf.int32) == part["labels"], tf.float64) * part["weights"]
        sums.append(tf.stack([summed_loss(tf.cast(logits, tf.float64), part), tf.reduce_sum(correct)]))
    return tf.add_n(sums)


def seed_dropout(model: keras.Model, step: int) -> None:
    """Seed a new model's dropout for update `step`, as if it had trained until then: Keras counts its draws."""
    for variable in model.non_trainable_variables:
        if variable.name == "seed_generator_state":
            variable.assign(variable + np.array([0, step - 1], variable.dtype))


def evaluate(batches: Iterable[GlobalBatch], sums_of: Callable[[GlobalBatch], tf.Tensor]) -> Evaluation:
    """Evaluate every batch. sums_of: the `evaluation_sums` of one, over all replicas."""
    sums, count = tf.zeros([2], tf.float64), 0
    for batch in batches:
        sums += sums_of(batch)
        count += batch.size
    summed_loss, correct = sums.numpy().tolist()
    return Evaluation(summed_loss, correct, count)
