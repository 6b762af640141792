"""Tests of a recorder that follows another record."""

import json
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from tf_impl.record import Recorder

EXAMPLES = 2000  # so that a sample can stand for what the layer receives and returns
COPIED_BYTES = 100_000  # enough for one forward pass, and not for two


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_pass_that_shows_the_layers_uses_no_copies_of_the_step(
    is_compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tf_impl.record.recorder.limit_copied_bytes", lambda *_: COPIED_BYTES)
    for name, followed in (("old", None), ("new", str(tmp_path / "old"))):
        model, optimizer = keras.Sequential([keras.layers.Dense(4)]), keras.optimizers.SGD(0.1)
        model.build([None, 4])

        def step(inputs: tf.Tensor, model: Any = model, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(inputs) ** 2)
            weights = model.trainable_variables
            optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))

        recorder = Recorder(str(tmp_path / name), model, optimizer, steps=1, follow=followed)
        loader = [tf.random.normal([EXAMPLES, 4])]
        for batch in loader if followed is None else recorder.batches(loader):
            with recorder.step():
                (tf.function(step) if is_compiled else step)(batch)
        assert json.loads((tmp_path / name / "record.json").read_text())["abridged"] == {}
