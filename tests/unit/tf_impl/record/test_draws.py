"""Tests of the layers that draw random numbers, such as the sampling of a variational autoencoder."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.diagnose.recorded.walk import diagnose_records
from tf_impl.record import FitRecorder

X, Y = np.random.default_rng(0).standard_normal((2, 12, 4)).astype("float32")


class Sampling(keras.layers.Layer):
    def __init__(self, seed: int) -> None:
        super().__init__(name="sampling")
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.generator)


def record(directory: Path, seed: int, follow: Path | None = None) -> Path:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, name="code"), Sampling(seed), keras.layers.Dropout(0.0), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input([4]), *layers], name="network")
    model.compile(keras.optimizers.SGD(0.1), "mse")
    recorder = FitRecorder(str(directory), steps=2, follow=None if follow is None else str(follow))
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[recorder])
    return directory


@pytest.mark.parametrize("seed", [1, 2])
def test_other_random_numbers_are_no_difference(seed: int, tmp_path: Path) -> None:
    a = record(tmp_path / "a", 1)
    names = json.loads((a / "record.json").read_text())["model"]["random_layers"]
    assert [name.rpartition("/")[2] for name in names] == ["sampling"]
    diagnosis = diagnose_records(a, record(tmp_path / "b", seed, follow=a))
    assert [(cause.cause, cause.sentence) for cause in diagnosis.causes] == []
    stages = {stage.name: stage for stage in diagnosis.stages}
    assert ("draws its own random numbers" in stages["loss"].note) == (seed == 2)
