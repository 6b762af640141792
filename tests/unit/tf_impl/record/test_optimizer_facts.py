"""Tests of the description of Keras's optimizers."""

from types import SimpleNamespace

import keras
import pytest

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
