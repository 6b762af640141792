"""Tests of the samples that show whether a script changes weights between two updates."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from common.recording.record_reader import open_record
from tf_impl.record import Recorder
from tf_impl.record.weight_samples import WeightSamples


def test_only_changed_weights_are_listed() -> None:
    weights = {"finite": tf.ones(3), "nan": tf.constant([1.0, np.nan, np.inf]), "index": tf.range(3)}
    samples = WeightSamples()
    samples.take(weights)
    assert samples.list_changed({name: tf.identity(tensor) for name, tensor in weights.items()}) == []
    changed = {name: tensor + 1 for name, tensor in weights.items()}
    assert samples.list_changed(changed) == ["finite", "nan", "index"]


@pytest.mark.parametrize("is_changed", [False, True])
def test_weights_that_change_between_updates_are_recorded(is_changed: bool, tmp_path: Path) -> None:
    keras.utils.clear_session()
    model, optimizer = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, name="dense")]), keras.optimizers.SGD()
    recorder, before = Recorder(str(tmp_path), model, optimizer, steps=2), []
    for _ in range(2):
        with recorder.step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(tf.ones([3, 4])) ** 2)
            weights = model.trainable_variables
            optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))
        if is_changed:
            model.layers[-1].kernel.assign(model.layers[-1].kernel * 0.99)
        before.append(model.layers[-1].kernel.numpy())
    facts = [step.get("changed_weights") for step in open_record(tmp_path).facts["steps"]]
    (name,) = [name for name in load_file(tmp_path / "start.safetensors") if name.endswith("dense/kernel")]
    name = name.partition("/")[2]
    assert facts == [None, [name] if is_changed else None]
    arrays = load_file(tmp_path / "step-00000002.safetensors")
    assert [x for x in arrays if x.startswith("changed_weight/")] == ([f"changed_weight/{name}"] if is_changed else [])
    if is_changed:
        np.testing.assert_array_equal(arrays[f"changed_weight/{name}"], before[0])
