"""Tests of the recorder of a loop."""

from pathlib import Path

import keras
import tensorflow as tf

from tf_impl.record import Recorder


class Closing(keras.layers.Layer):
    """A layer that ends a record within the forward pass."""

    recorder: Recorder | None = None

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        if self.recorder is not None:
            self.recorder.close()
        return inputs


def test_a_record_that_ends_within_a_step_keeps_no_arrays(tmp_path: Path) -> None:
    closing, optimizer = Closing(), keras.optimizers.SGD(0.1)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2), closing])
    recorder = closing.recorder = Recorder(str(tmp_path), model, optimizer)
    before = model.get_weights()[0]
    with recorder.step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones([3, 4])) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))
    assert (before != model.get_weights()[0]).any()
    observer = recorder._observer
    assert observer.step is None
    assert observer.layers is not None
    assert observer.layers.arrays == {}
    observer._open_batch()  # as a pass of another replica does, which is still in progress
