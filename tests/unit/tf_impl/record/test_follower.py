"""Tests of a recorder that follows another record."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.diagnose.recorded.walk import diagnose_records
from common.errors import UserError
from tf_impl.record import FitRecorder, Recorder

EXAMPLES = 2000  # so that a sample can stand for what the layer receives and returns
COPIED_BYTES = 100_000  # enough for one forward pass, and not for two


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_pass_that_shows_the_layers_uses_no_copies_of_the_step(
    is_compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tf_impl.record.state_writer.limit_copied_bytes", lambda *_: COPIED_BYTES)
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


class CarryingModel(keras.Model):
    """A model whose first call computes something else than later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden = keras.layers.Dense(4), None
        self.layer.build([None, 4])
        self.built = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        returned = self.layer(inputs)
        scale = 1.0 if self.hidden is None else 2.0
        self.hidden = returned
        return returned * scale


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("follows", [False, True])
def test_recording_leaves_the_states_in_a_model(is_compiled: bool, follows: bool, tmp_path: Path) -> None:
    losses: list[float] = []
    for name in ("plain", "old", "new"):
        model = CarryingModel()
        model.layer.set_weights([np.eye(4), np.zeros(4)])
        optimizer = keras.optimizers.SGD(0.0)

        def step(inputs: tf.Tensor, model: Any = model, optimizer: Any = optimizer) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(inputs) ** 2)
            weights = model.trainable_variables
            optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))
            return loss

        compute = tf.function(step) if is_compiled else step
        if name == "plain":
            losses.append(float(compute(tf.ones([2, 4]))))
            continue
        directory = str(tmp_path / "old") if follows and name == "new" else None
        recorder = Recorder(str(tmp_path / name), model, optimizer, steps=1, follow=directory)
        with recorder.step():
            losses.append(float(compute(tf.ones([2, 4]))))
    assert losses == [losses[0]] * 3


def test_a_model_that_no_step_calls_is_refused(tmp_path: Path) -> None:
    for name, followed in (("old", None), ("new", str(tmp_path / "old"))):
        model, copied = (keras.Sequential([keras.Input([4]), keras.layers.Dense(4)]) for _ in range(2))
        optimizer = keras.optimizers.SGD(0.1)
        recorder = Recorder(str(tmp_path / name), model, optimizer, steps=1, follow=followed)
        refusal = pytest.raises(UserError, match="has not taken its weights") if followed else nullcontext()
        with refusal, recorder.step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((copied if followed else model)(tf.ones([2, 4])) ** 2)
                loss += tf.reduce_sum(model.layers[0].kernel)
            weights = model.trainable_variables[:1]
            optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))


def test_fit_follows_batches_of_other_lengths(tmp_path: Path) -> None:
    """Its own arrays have one length, which its compiled step expects."""
    generator = np.random.default_rng(0)
    for name, length, follow in (("old", 5, None), ("new", 7, str(tmp_path / "old"))):
        keras.utils.set_random_seed(length)
        layers = [keras.layers.Embedding(9, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
        ids, targets = generator.integers(0, 9, (32, length)), generator.normal(size=(32, 1)).astype(np.float32)
        model.fit(ids, targets, batch_size=8, verbose=0, callbacks=[FitRecorder(str(tmp_path / name), follow=follow)])
    assert len(json.loads((tmp_path / "new" / "record.json").read_text())["steps"]) == 3
    assert diagnose_records(tmp_path / "old", tmp_path / "new").is_equal


def _train_two_models(directory: Path, follow: Path | None, seed: int) -> list[float]:
    """Train two models by a tf.function each within one step. Return the losses of both."""
    keras.utils.set_random_seed(seed)
    models = [keras.Sequential([keras.Input([4]), keras.layers.Dense(2)]) for _ in range(2)]
    optimizers = [keras.optimizers.SGD(0.1) for _ in models]

    def build(model: Any, optimizer: Any) -> Any:
        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - 1) ** 2)
            weights = model.trainable_variables
            optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))
            return loss

        return step

    first, second = (
        Recorder(str(directory / name), model, optimizer, follow=None if follow is None else str(follow / name))
        for name, model, optimizer in zip("ab", models, optimizers, strict=True)
    )
    functions, losses = [build(*pair) for pair in zip(models, optimizers, strict=True)], []
    batches = [tf.random.normal([6, 4]) for _ in range(3)]
    for x in second.batches(first.batches(batches)):
        with first.step(), second.step():
            losses += [float(function(x)) for function in functions]
    return losses


def test_each_of_two_recorders_follows_at_the_function_that_calls_its_model(tmp_path: Path) -> None:
    losses = _train_two_models(tmp_path / "old", None, 0)
    assert _train_two_models(tmp_path / "new", tmp_path / "old", 1) == pytest.approx(losses, rel=1e-5)
    for name in "ab":
        diagnosis = diagnose_records(tmp_path / "old" / name, tmp_path / "new" / name)
        assert diagnosis.is_equal, [cause.sentence for cause in diagnosis.causes]


def test_a_single_recorder_whose_function_does_not_call_its_model_refuses_to_follow(tmp_path: Path) -> None:
    _train_two_models(tmp_path / "old", None, 0)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    recorder = Recorder(str(tmp_path / "new"), model, keras.optimizers.SGD(0.1), follow=str(tmp_path / "old" / "a"))
    function = tf.function(lambda x: x * 2)
    with pytest.raises(ValueError, match="follow: The model was not called in a recorded step"), recorder.step():
        function(tf.ones([6, 4]))


def test_a_follower_records_the_loss_of_an_activity_regularizer_once(tmp_path: Path) -> None:
    """It calls the layer once more for the recorded input, before the script adds the losses of its layers."""
    numbers, losses = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32), []
    for name, follow in (("old", None), ("new", str(tmp_path / "old"))):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(4, activity_regularizer=keras.regularizers.L2(0.5)), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([4]), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
        recorder = FitRecorder(str(tmp_path / name), follow=follow, steps=2)
        model.fit(numbers, numbers[:, :1], batch_size=8, shuffle=False, verbose=0, callbacks=[recorder])
        steps = json.loads((tmp_path / name / "record.json").read_text())["steps"]
        losses.append([facts["losses"] for facts in steps])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
