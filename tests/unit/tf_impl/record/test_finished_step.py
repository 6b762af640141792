"""Tests of the gradients of a finished step."""

import json
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from tf_impl.record import Recorder


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
