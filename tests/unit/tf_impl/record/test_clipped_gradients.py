"""Tests of the gradients before clipping, if the script computes them from those of several tapes."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.diagnose.recorded.walk import diagnose_records
from tf_impl.record import Recorder

DATA = np.random.default_rng(0).standard_normal((24, 5)).astype("float32")


def train(directory: Path, parts: int, clips_parts: bool = False) -> Path:
    """Train with the mean of the gradients of parts of each batch, clipped by its norm. Return the record."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def train_step(rows: tf.Tensor) -> None:
        weights = model.trainable_variables
        total: list[Any] = [0.0] * len(weights)
        for part in tf.split(rows, parts):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.mean_squared_error(part[:, 4:], model(part[:, :4])))
            gradients = tape.gradient(loss, weights)
            if clips_parts:
                gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
            total = [x + gradient / parts for x, gradient in zip(total, gradients, strict=True)]
        if not clips_parts:
            total, _ = tf.clip_by_global_norm(total, 0.1)
        optimizer.apply_gradients(zip(total, weights, strict=True))

    recorder = Recorder(str(directory), model, optimizer)
    for rows in tf.data.Dataset.from_tensor_slices(DATA).batch(8):
        with recorder.step():
            train_step(rows)
    return directory


def test_the_gradients_before_clipping_are_those_that_the_script_clips(tmp_path: Path) -> None:
    diagnosis = diagnose_records(train(tmp_path / "whole", 1), train(tmp_path / "parts", 2))
    assert [cause.cause for cause in diagnosis.causes] == []


def test_a_clipping_of_parts_is_no_clipping_of_the_sum(tmp_path: Path) -> None:
    diagnosis = diagnose_records(train(tmp_path / "whole", 1), train(tmp_path / "parts", 2, clips_parts=True))
    causes = [cause.cause for cause in diagnosis.causes]
    assert causes[0] == "clipped_before_reduction", [cause.sentence for cause in diagnosis.causes]
    assert not {"accumulation_not_divided", "scaled_gradient"} & {*causes}
