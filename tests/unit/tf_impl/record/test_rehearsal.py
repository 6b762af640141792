"""Tests of rehearsals: their effects on variables, random generators and iterators are undone."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_impl.record.rehearsal import NotVisibleError, Rehearsal


def test_effects_are_undone(capsys: pytest.CaptureFixture[str]) -> None:
    variable, generator = tf.Variable([1.0, 2.0]), tf.random.Generator.from_seed(1)
    state = generator.state.numpy()
    expected = []
    for rehearses in (False, True):
        tf.random.set_seed(7)
        random.seed(7)
        np.random.seed(7)
        if rehearses:
            with Rehearsal([], creates_variables=False, compiled=None):
                variable.assign_add([1.0, 1.0])
                variable.scatter_nd_update([[0]], [9.0])
                generator.normal([3])
                tf.random.uniform([2])
                random.random()
                np.random.rand()
                print("printed")
        expected.append((float(tf.random.uniform([])), random.random(), np.random.rand()))
    assert expected[0] == expected[1]
    assert variable.numpy().tolist() == [1.0, 2.0]
    assert np.array_equal(generator.state.numpy(), state)
    assert capsys.readouterr().out == ""
    assert not tf.config.functions_run_eagerly()


class CarryingLayer(keras.layers.Layer):
    """A layer with states in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: tf.Tensor | None = None
        self.count, self.lengths = 0, [1]
        self.inner = keras.layers.Dense(2)

    def call(self, features: tf.Tensor) -> tf.Tensor:
        returned = self.inner(features)
        self.hidden, self.count, self.inner.cache = returned, self.count + 1, {"last": returned}
        self.lengths.append(len(features))
        return returned


@pytest.mark.parametrize("is_built", [False, True])
def test_layers_get_their_attributes_back_unless_they_are_built(is_built: bool) -> None:
    layer = CarryingLayer()
    if is_built:
        layer.build([None, 3])
        layer.inner.build([None, 3])
    with Rehearsal([layer], not is_built, None):
        layer(tf.ones([4, 3]))
    assert layer.built
    assert layer.inner.built
    if is_built:
        assert (layer.hidden, layer.count, list(layer.lengths)) == (None, 0, [1])
        assert not hasattr(layer.inner, "cache")
    layer(tf.ones([4, 3]))


def test_a_dropout_of_keras_2_draws_no_seed_of_the_script() -> None:
    expected = []
    for rehearses in (False, True):
        tf.random.set_seed(7)
        if rehearses:
            with Rehearsal([], True, None):
                tf.nn.dropout(tf.ones([4]), 0.5)
        expected.append(float(tf.random.uniform([])))
    assert expected[0] == expected[1]


def test_iterators_of_the_script_do_not_move() -> None:
    iterator = iter(tf.data.Dataset.range(3))
    with pytest.raises(NotVisibleError, match="call the tf.function with the batch"), Rehearsal([], False, None):
        next(iterator)
    assert int(next(iterator)) == 0
