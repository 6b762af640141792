"""Tests of the recorder of a loop."""

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from common.recording.record_reader import open_record
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
    model(tf.ones([3, 4]))  # as a pass of another replica does, which is still in progress
    assert observer._find_open_batch() is None


@pytest.mark.parametrize("losses", [keras.losses, tf.keras.losses])
def test_functions_of_keras_losses_are_recorded(losses: Any, tmp_path: Path) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    labels = tf.constant([2, 0, 1])

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses.sparse_categorical_crossentropy(y, model(x), from_logits=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))

    original = losses.sparse_categorical_crossentropy
    recorder = Recorder(str(tmp_path), model, optimizer, steps=1)
    with recorder.step():
        train_step(tf.ones([3, 4]), labels)
    record = open_record(tmp_path)
    loss = record.facts["loss"]
    assert loss is not None
    assert loss["name"] == "keras.losses.sparse_categorical_crossentropy"
    assert loss["arguments"]["from_logits"] is True
    assert loss["arguments"]["reduction"] is None
    assert not any("loss function" in note for note in record.notes)
    assert losses.sparse_categorical_crossentropy is original
    batch = record.ranks[0].open_step(1).select("batch/0/label")
    assert batch["y_true"].tolist() == [2, 0, 1]


@pytest.mark.parametrize("has_object", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
def test_functions_that_a_script_only_logs_are_no_losses(has_object: bool, is_late: bool, tmp_path: Path) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    x, y = tf.ones([3, 4]), tf.constant([[1.0, 0.0]] * 3)
    recorder = Recorder(str(tmp_path), model, optimizer, steps=1)
    with recorder.step():
        with tf.GradientTape() as tape:
            outputs = model(x)
            loss = keras.losses.MeanSquaredError() if has_object else keras.losses.mean_squared_error
            value = tf.reduce_mean(loss(y, outputs))
            if not is_late:
                keras.losses.mean_absolute_error(y, outputs)
        weights = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(value, weights), weights, strict=True)))
        if is_late:
            keras.losses.mean_absolute_error(y, outputs)
    record = open_record(tmp_path)
    facts = record.facts["loss"]
    assert facts is not None
    assert facts["name"].lower().replace("_", "").endswith("losses.meansquarederror")
    assert record.get_step_facts(1)[0]["losses"] == [pytest.approx(float(value))]
    assert [*record.ranks[0].open_step(1).select("batch/0/label")] == ["y_true"]


def test_the_places_in_the_batch_name_arrays_that_a_function_receives_in_another_order(tmp_path: Path) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])

    @tf.function
    def train_step(y: tf.Tensor, x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))

    data = tf.data.Dataset.from_tensor_slices((tf.ones([3, 4]), tf.constant([2, 0, 1]))).batch(3)
    recorder = Recorder(str(tmp_path), model, optimizer, steps=1)
    for x, y in recorder.batches(data):
        with recorder.step():
            train_step(y, x)
    keys = open_record(tmp_path).get_step_facts(1)[0]["keys"]
    assert keys == {"input/0": "0", "label/y_true": "1"}


def test_a_clipping_belongs_to_the_model_whose_gradients_it_clips(tmp_path: Path) -> None:
    models = {name: keras.Sequential([keras.Input([4]), keras.layers.Dense(3)]) for name in ("actor", "critic")}
    optimizers = {name: keras.optimizers.SGD(0.1) for name in models}

    @tf.function
    def train_step(x: tf.Tensor) -> None:
        for name, model in models.items():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            weights = model.trainable_variables
            gradients = tape.gradient(loss, weights)
            if name == "critic":
                gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
            optimizers[name].apply_gradients(list(zip(gradients, weights, strict=True)))

    recorders = [Recorder(str(tmp_path / name), model, optimizers[name], steps=1) for name, model in models.items()]
    with recorders[0].step(), recorders[1].step():
        train_step(tf.ones([3, 4]))
    norms = {name: open_record(tmp_path / name).get_step_facts(1)[0]["max_norm"] for name in models}
    assert norms == {"actor": None, "critic": 0.5}
