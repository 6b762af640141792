"""Tests of the description of Keras's optimizers."""

from types import SimpleNamespace

import keras
import pytest

from tf_impl.record.optimizer_facts import read_rate


def test_the_rate_of_a_schedule_is_that_of_the_next_update() -> None:
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=10, end_learning_rate=0.0)
    optimizer = SimpleNamespace(_learning_rate=schedule, learning_rate=0.8, iterations=3)  # Keras 2's is that of before
    assert read_rate(optimizer) == pytest.approx(0.7)
    assert read_rate(SimpleNamespace(_learning_rate=0.8, learning_rate=0.8, iterations=3)) == pytest.approx(0.8)
