"""Scripts of `fit` whose model has no variables before the first step."""

import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tf_impl.record import FitRecorder

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(10, 8, 4)).astype("float32"), RNG.normal(size=(10, 2, 1)).astype("float32")


class Embedding(keras.layers.Layer):
    """A layer without `build`: Keras finds its variables by a symbolic pass, which its convolutions refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Conv1D(4, 5, strides=2, padding="same")
        self.second = keras.layers.Conv1D(4, 5, strides=2, padding="same")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.second(self.first(x))


class Recognizer(keras.Model):
    """A model with a Sequential that accepts batches only of the size for which it was built."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([Embedding(), keras.layers.Dense(1)])

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.encoder(x)

    def train_step(self, data: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data["x"]) - data["y"]) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def _fit(callbacks: list[FitRecorder]) -> list[float]:
    keras.utils.set_random_seed(0)
    model = Recognizer()
    model.compile("sgd")
    data = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(4)
    losses: list[float] = model.fit(data, epochs=2, verbose=0, callbacks=callbacks).history["loss"]
    return losses


def test_a_model_is_built_as_without_a_recorder(tmp_path: Path) -> None:
    """It is built for batches of any size: the last batch is smaller."""
    losses = _fit([])
    assert _fit([FitRecorder(str(tmp_path / "record"))]) == losses
    facts = json.loads((tmp_path / "record/record.json").read_text())
    assert facts["complete"]
    assert not any("could not be computed beside the training" in sentence for sentence in facts["not_recorded"])
