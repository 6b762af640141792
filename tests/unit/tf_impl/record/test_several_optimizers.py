"""Scripts of `fit` whose train_step uses other optimizers than that of `compile`, as GANs and SimCLR do."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_impl.record import FitRecorder

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 4)).astype("float32"), RNG.integers(0, 3, 12)


class Probed(keras.Model):
    """A model that reconstructs its input, and a probe that classifies the first half of each batch by its code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = keras.layers.Dense(3), keras.layers.Dense(4)
        self.probe = keras.layers.Dense(3)
        self.first, self.second = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.01)
        self.loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.decoder(self.encoder(x))

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - x) ** 2)
        weights = self.encoder.trainable_weights + self.decoder.trainable_weights
        self.first.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            probe_loss = self.loss_function(y[:2], self.probe(self.encoder(x[:2])))
        weights = self.probe.trainable_weights
        self.second.apply_gradients(zip(tape.gradient(probe_loss, weights), weights, strict=True))
        return {"loss": loss}


def _read_facts(directory: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((directory / "record.json").read_text())
    return facts


def test_only_the_passes_of_the_recorded_optimizer_are_micro_batches(tmp_path: Path) -> None:
    model = Probed()
    model.compile()
    callback = FitRecorder(str(tmp_path / "record"), optimizer=model.first)
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0, callbacks=[callback])
    facts = _read_facts(tmp_path / "record")
    assert facts["complete"]
    assert [step["micro_batches"] for step in facts["steps"]] == [1, 1, 1]
    assert [step["rates"] for step in facts["steps"]] == [[pytest.approx(0.1)]] * 3
    assert len(facts["optimizer"]["groups"][0]["parameters"]) == 4


def test_an_optimizer_that_never_updates_is_named(tmp_path: Path) -> None:
    model = Probed()
    model.compile()
    with pytest.warns(RuntimeWarning, match=r"pass it: FitRecorder\(\.\.\., optimizer=\.\.\.\)"):
        callback = FitRecorder(str(tmp_path / "record"))
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[callback])
        assert callback._recorder is not None
        callback._recorder.close()  # as at the end of the script
    with pytest.raises(ValueError, match="optimizer: is a str; pass a Keras optimizer"):
        FitRecorder(str(tmp_path / "record"), optimizer="sgd")
