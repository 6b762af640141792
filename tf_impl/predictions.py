"""The predictions of an evaluation, which are gathered as a sum over the replicas."""

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

    The flat vector of predictions has places for all examples of the global batch. Places of examples that the
    micro-batch does not have are 0, so that the sum over all micro-batches and replicas has each prediction once.
    `common.data.example_places` computes the places.

    Args:
        sums: The sums of the micro-batch [2], or [2 * outputs] if there are several.
        outputs: The model's outputs [rows, ...], float64.
        batch: The micro-batch.
        predict: A function of the outputs that returns the predictions of `class_places`, a row for each.
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
