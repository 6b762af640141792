"""Tests of an unbuilt model with two inputs that a loop calls eagerly.

Keras then builds the model by a call in a graph, in which the first layers receive eager tensors.
"""

import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from common.diagnose.recorded.walk import diagnose_records
from tf_impl.record import Recorder

LEFT, RIGHT = np.random.default_rng(0).standard_normal((2, 6, 4)).astype("float32")


class TwoInputs(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = keras.layers.Dense(5, name="left"), keras.layers.Dense(5, name="right")
        self.head = keras.layers.Dense(1, name="head")

    def call(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return self.head(self.left(left) + self.right(right))


def record(directory: Path, seed: int, follow: Path | None = None) -> Path:
    keras.utils.set_random_seed(seed)
    model, optimizer = TwoInputs(), keras.optimizers.SGD(0.1)
    recorder = Recorder(str(directory), model, optimizer, steps=2, follow=None if follow is None else str(follow))
    loader = [(LEFT, RIGHT)] * 2
    for left, right in loader if follow is None else recorder.batches(loader):
        with recorder.step():
            with tf.GradientTape() as tape:
                loss = keras.losses.MeanSquaredError()(np.zeros((6, 1), "float32"), model(left, right))
            weights = model.trainable_weights
            optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))
    return directory


def test_the_call_that_builds_the_model_is_not_recorded(tmp_path: Path) -> None:
    a = record(tmp_path / "a", 0)
    facts = json.loads((a / "record.json").read_text())
    assert facts["complete"]
    layers = {layer["path"]: layer for layer in facts["model"]["layers"]}
    assert [*layers] == ["model", "two_inputs/left", "two_inputs/right", "two_inputs/head"]
    assert all(len(layers[f"two_inputs/{name}"]["variables"]) == 2 for name in ("left", "right", "head"))


def test_an_unbuilt_model_with_two_inputs_gets_the_weights_of_the_record_that_it_follows(tmp_path: Path) -> None:
    a = record(tmp_path / "a", 0)
    diagnosis = diagnose_records(a, record(tmp_path / "b", 1, follow=a))
    assert [cause.sentence for cause in diagnosis.causes] == []
