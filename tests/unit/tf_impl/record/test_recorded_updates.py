"""Tests that the formulas of Keras's optimizers reproduce recorded updates."""

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.diagnose.recorded.walk import diagnose_records
from common.recording.record_reader import open_record
from tests.unit.compare_recorded_updates import compare_recorded_updates
from tf_impl.record import Recorder

Build = Callable[[], keras.optimizers.Optimizer]
OPTIMIZERS: dict[str, Build] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, 0.9, use_ema=True, ema_overwrite_frequency=2),
    "adam": lambda: keras.optimizers.Adam(weight_decay=0.1, amsgrad=True, clipnorm=0.1),
    "adamw": lambda: keras.optimizers.AdamW(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
    "rmsprop": lambda: keras.optimizers.RMSprop(epsilon=1e-3, weight_decay=0.1),
    "rmsprop, momentum": lambda: keras.optimizers.RMSprop(momentum=0.9, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, epsilon=1e-3, weight_decay=0.1),
    "adadelta": lambda: keras.optimizers.Adadelta(0.1, weight_decay=0.1, global_clipnorm=0.1),
    "adamax": lambda: keras.optimizers.Adamax(0.1, epsilon=1e-2, weight_decay=0.1),
    "nadam": lambda: keras.optimizers.Nadam(0.1, epsilon=1e-3, weight_decay=0.1),
    "adam, plain": lambda: keras.optimizers.Adam(0.1),
    "lion": lambda: keras.optimizers.Lion(0.1, weight_decay=0.1),
}


def record(directory: Path, build: Build, dtype: str = "float32", earlier_steps: int = 0) -> Path:
    """Record a regression. earlier_steps: steps of the optimizer before the record."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, "tanh", dtype=dtype), keras.layers.Dense(1, dtype=dtype)]
    model = keras.Sequential([keras.Input([4], dtype=dtype), *layers])
    rng = np.random.default_rng(0)
    inputs, labels = (tf.constant(rng.standard_normal((16, size)), dtype) for size in (4, 1))
    optimizer = build()

    def step(shift: int) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.MeanSquaredError()(labels, model(inputs + shift)))
        weights = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))

    for number in range(earlier_steps):
        step(number - earlier_steps)
    recorder = Recorder(str(directory), model, optimizer)
    for number in range(3):
        with recorder.step():
            step(number)
    return directory


@pytest.mark.parametrize(("precision", "earlier_steps"), [("float32", 0), ("float32", 2), ("float64", 2)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_formulas_reproduce_the_updates(name: str, precision: str, earlier_steps: int, tmp_path: Path) -> None:
    directory = record(tmp_path / "record", OPTIMIZERS[name], precision, earlier_steps)
    checks = compare_recorded_updates(directory, precision)
    assert len([check for check in checks if check.tensor.endswith("update")]) == 3
    assert not any("step 2: slot" in check.tensor or "step 2: exp_avg_sq" in check.tensor for check in checks)
    assert [(check.tensor, check.difference) for check in checks if check.differs] == []


MISTAKES: dict[str, tuple[str, Build, Build]] = {
    "rho": ("rho", lambda: keras.optimizers.RMSprop(), lambda: keras.optimizers.RMSprop(rho=0.99)),
    "accumulator": (
        "initial_accumulator_value",
        lambda: keras.optimizers.Adagrad(),
        lambda: keras.optimizers.Adagrad(initial_accumulator_value=0.0),
    ),
    "lion": ("betas", lambda: keras.optimizers.Lion(), lambda: keras.optimizers.Lion(beta_2=0.9)),
    "nadam": ("optimizer", lambda: keras.optimizers.Adam(), lambda: keras.optimizers.Nadam()),
    "average": (
        "ema",
        lambda: keras.optimizers.Adam(),
        lambda: keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=1, ema_momentum=0.9),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_first_and_alone(name: str, tmp_path: Path) -> None:
    cause, a, b = MISTAKES[name]
    diagnosis = diagnose_records(record(tmp_path / "a", a), record(tmp_path / "b", b))
    assert [(found.cause, found.side, found.confirmed) for found in diagnosis.causes] == [(cause, "b", True)]


def test_a_loss_object_for_each_step_is_one_loss(tmp_path: Path) -> None:
    loss = open_record(record(tmp_path / "record", OPTIMIZERS["adam"])).facts["loss"]
    assert loss is not None
    assert loss["name"].endswith("MeanSquaredError")


def test_only_the_variables_of_the_recorded_optimizer_are_described(tmp_path: Path) -> None:
    """A step may have an optimizer for each part of the model."""
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, name="body"), keras.layers.Dense(2, name="head")])
    optimizers = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1)
    recorder = Recorder(str(tmp_path), model, optimizers[1], steps=1)
    with recorder.step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones([3, 4])) ** 2)
        weights = model.trainable_variables
        pairs = list(zip(tape.gradient(loss, weights), weights, strict=True))
        optimizers[0].apply_gradients(pairs[:2])
        optimizers[1].apply_gradients(pairs[2:])
    facts = open_record(tmp_path).facts
    assert facts["optimizer"] is not None
    assert [[name.rpartition("/")[2] for name in x["parameters"]] for x in facts["optimizer"]["groups"]] == [
        ["kernel", "bias"]
    ]
    assert all("head" in name for name in facts["optimizer"]["groups"][0]["parameters"])
    assert facts["optimizer"]["missing"] == []
    assert any("other optimizers may update these variables" in note for note in facts["not_recorded"])
