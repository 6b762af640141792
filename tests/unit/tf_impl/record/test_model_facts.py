"""Test of the description of layers whose hyperparameters belong to a part of them."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.recording.record_reader import open_record
from tf_impl.record import FitRecorder
from tf_impl.record.model_facts import describe_layer


@pytest.mark.parametrize("reset_after", [True, False])
def test_a_recurrent_layer_has_the_hyperparameters_of_its_cell(reset_after: bool) -> None:
    layer = keras.layers.GRU(3, reset_after=reset_after, return_state=True)
    attributes = describe_layer(layer, "gru", {})["attributes"]
    assert attributes["reset_after"] is reset_after
    assert attributes["return_state"] is True


class OwnRegularizer(keras.regularizers.Regularizer):
    """A regularizer without a configuration, as scripts write them."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x)


@pytest.mark.parametrize(
    ("regularizer", "expected"),
    [
        (keras.regularizers.L1L2(0.5, 0.25), [0.5, 0.25]),
        (keras.regularizers.L2(0.25), [0.0, 0.25]),
        (keras.regularizers.OrthogonalRegularizer(), "OrthogonalRegularizer"),
        (OwnRegularizer(), "OwnRegularizer"),
    ],
)
def test_a_regularizer_is_described_by_its_factors_or_its_name(
    regularizer: keras.regularizers.Regularizer, expected: object
) -> None:
    layer = keras.layers.Dense(2, activity_regularizer=regularizer)
    assert describe_layer(layer, "dense", {})["attributes"]["activity_regularizer"] == expected


class OwnLayer(keras.layers.Layer):
    """A layer of a script that regularizes its variable."""

    def build(self, _: object) -> None:
        self.scale = self.add_weight(name="scale", shape=(3,), regularizer=keras.regularizers.L2(0.25))
        self.shift = self.add_weight(name="shift", shape=(3,))


def test_the_regularizer_of_a_variable_of_the_script_s_own_layer_is_described() -> None:
    layer = OwnLayer()
    layer.build((None, 3))
    attributes = describe_layer(layer, "own", {})["attributes"]
    assert attributes["scale_regularizer"] == [0.0, 0.25]
    assert "shift_regularizer" not in attributes


@pytest.mark.parametrize("is_layer_frozen", [False, True])
def test_only_a_frozen_batch_norm_is_in_evaluation_mode(is_layer_frozen: bool, tmp_path: Path) -> None:
    """A batch norm whose gamma and beta are frozen, but not itself, normalizes by the batch."""
    keras.utils.clear_session()
    norm = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.Input([4]), norm, keras.layers.Dense(1)])
    if is_layer_frozen:
        norm.trainable = False
    else:
        norm.gamma.trainable = norm.beta.trainable = False
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(24, 4))
    model.fit(x, x[:, :1], batch_size=8, callbacks=[FitRecorder(str(tmp_path))], verbose=0)
    facts = open_record(tmp_path).facts["model"]
    assert facts is not None
    (described,) = [layer for layer in facts["layers"] if layer["kind"] == "BatchNormalization"]
    assert described["training"] is not is_layer_frozen
    assert not any(facts["variables"][described["variables"][role]]["trainable"] for role in ("gamma", "beta"))
