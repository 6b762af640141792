"""Tests of the description of Keras's optimizers."""

import json
from pathlib import Path
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from tf_impl.record import Recorder
from tf_impl.record.optimizer_facts import describe_optimizer, describe_schedule, read_rate


def test_the_rate_of_a_schedule_is_that_of_the_next_update() -> None:
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=10, end_learning_rate=0.0)
    optimizer = SimpleNamespace(_learning_rate=schedule, learning_rate=0.8, iterations=3)  # Keras 2's is that of before
    assert read_rate(optimizer) == pytest.approx(0.7)
    assert read_rate(SimpleNamespace(_learning_rate=0.8, learning_rate=0.8, iterations=3)) == pytest.approx(0.8)


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without a configuration, as scripts write it."""

    def __call__(self, step: object) -> float:
        return 0.5


def test_a_schedule_without_a_configuration_is_described_by_its_name() -> None:
    optimizer = keras.optimizers.SGD(Warmup(), momentum=0.9)
    facts = describe_optimizer(optimizer, {"w": SimpleNamespace(trainable=True)}, {"w": None}, {})
    assert facts["groups"][0]["hyperparameters"]["momentum"] == 0.9
    schedule = describe_schedule(optimizer)
    assert schedule is not None
    assert str(schedule["name"]).endswith(".Warmup")
    with pytest.raises(NotImplementedError):  # the script's schedule is as it was
        optimizer._learning_rate.get_config()


def test_only_variables_that_the_optimizer_does_not_know_are_missing(tmp_path: Path) -> None:
    """The optimizer receives the variables of the stopped layer, without gradients, but not those of the free one."""
    stopped, trained, free = (keras.layers.Dense(2, name=name) for name in ("stopped", "trained", "free"))
    inputs = keras.Input([3])
    hidden = keras.layers.Lambda(tf.stop_gradient)(stopped(inputs))
    model = keras.Model(inputs, free(trained(hidden)))
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        weights = stopped.trainable_variables + trained.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))
        return loss

    recorder = Recorder(str(tmp_path), model, optimizer, steps=1)
    with recorder.step(), pytest.warns(UserWarning, match="Gradients do not exist"):
        train_step(tf.ones([4, 3]))
    facts = json.loads((tmp_path / "record.json").read_text())["optimizer"]
    assert facts["missing"] == ["free/kernel", "free/bias"]
    assert [group["parameters"] for group in facts["groups"]] == [["trained/kernel", "trained/bias"]]
    assert facts["frozen"] == []
