"""Predictions of an evaluation. A sum over the replicas gathers them: each adds 0 for the examples of the others."""

from collections.abc import Callable

import tensorflow as tf

PredictClasses = Callable[[tf.Tensor], tf.Tensor]


def predict_classes(outputs: tf.Tensor) -> tf.Tensor:
    """Return the class with the largest logit at each position of each example, [positions, 1]."""
    return tf.reshape(tf.cast(tf.argmax(outputs, -1), outputs.dtype), [-1, 1])


def append_predictions(
    sums: tf.Tensor, outputs: tf.Tensor, batch: dict[str, tf.Tensor], predict: PredictClasses = predict_classes
) -> tf.Tensor:
    """Append the predictions of a micro-batch to its sums, if the batch asks for them.

    The predictions are a flat vector for all examples of the global batch, with 0 for the examples that the micro-batch
    does not have. The sum over all micro-batches and replicas has each prediction once. `places` in the batch have the
    row of each example's prediction in the micro-batch, or -1.

    Args:
        sums: The sums of losses and of metrics over the micro-batch [2], or [2 * outputs] if there are several outputs.
        outputs: The model's outputs [rows, ...], float64.
        batch: The micro-batch.
        predict: A function that returns the predictions from the outputs in the rows `class_places`.
    """
    if "class_places" in batch:
        places, predictions = batch["class_places"], predict(outputs)
    elif "output_places" in batch:
        places, predictions = batch["output_places"], tf.reshape(outputs, [tf.shape(outputs)[0], -1])
    else:
        return sums
    places = tf.reshape(places, [-1])
    selected = tf.gather(predictions, tf.maximum(places, 0))
    placed = tf.where(places[:, None] >= 0, selected, tf.zeros_like(selected))
    return tf.concat([sums, tf.reshape(placed, [-1])], 0)
