"""Tests of the gradients of a finished step."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from tf_impl.record import FitRecorder, Recorder


@pytest.mark.parametrize("is_random", [False, True])
def test_gradients_of_other_random_numbers_are_not_those_before_the_clipping(is_random: bool, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model, optimizer = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)]), keras.optimizers.Adam(clipnorm=1e-3)

    @tf.function
    def step(inputs: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            noise = tf.random.uniform(tf.shape(inputs)) if is_random else 0.0
            loss = tf.reduce_mean(model(inputs + noise) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))
        return loss

    recorder = Recorder(str(tmp_path), model, optimizer, steps=1)
    with recorder.step():
        step(tf.ones([2, 4]))
    names = load_file(tmp_path / "step-00000001.safetensors")
    assert any(name.startswith("gradient/") for name in names)
    facts = json.loads((tmp_path / "record.json").read_text())
    assert ("clip_factors" in facts["steps"][0]) != is_random
    assert not any(name.startswith("gradient_unclipped/") for name in names)
    assert any("returned other values than the real one" in note for note in facts["not_recorded"]) == is_random


def test_the_losses_of_single_outputs_are_not_compared_with_those_of_the_rehearsal(tmp_path: Path) -> None:
    """Keras returns the means over the epoch so far, and in the rehearsal those of the batch."""
    x = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
    inputs = keras.Input([4])
    model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs) for name in ("near", "far")})
    model.compile(keras.optimizers.SGD(0.1), {"near": "mse", "far": "mae"})
    batches = tf.data.Dataset.from_tensor_slices((x, {"near": x[:, :1], "far": 100 * x[:, 1:2]})).batch(4)
    model.fit(batches, shuffle=False, verbose=0, callbacks=[FitRecorder(str(tmp_path))])
    facts = json.loads((tmp_path / "record.json").read_text())
    assert len(facts["steps"]) == 3
    assert not any("returned other values" in note for note in facts["not_recorded"])
