"""What a step computes of a batch, and an evaluation of all batches."""

from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf

from common.data.batches import GlobalBatch
from common.training.strategy import Evaluation


def compute_logits(model: keras.Model, batch: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
    """Logits [n, classes], at least float32; the model's dtype policy computes them in bfloat16."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "weights")}
    logits = model(inputs, training=training)
    return logits if logits.dtype == tf.float64 else tf.cast(logits, tf.float32)


def summed_loss(logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Cross-entropy summed over the examples, each times its weight; a scalar."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["labels"], logits)
    return tf.reduce_sum(losses * tf.cast(batch["weights"], logits.dtype))


def evaluation_sums(logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Summed loss and number of correct answers, float64 [2]."""
    correct = tf.cast(tf.argmax(logits, -1, tf.int32) == batch["labels"], tf.float64) * batch["weights"]
    return tf.stack([summed_loss(tf.cast(logits, tf.float64), batch), tf.reduce_sum(correct)])


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
