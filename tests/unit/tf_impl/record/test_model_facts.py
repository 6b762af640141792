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


@pytest.mark.parametrize("name", ["Dense", "MultiHeadAttention", "Block"])
def test_a_class_of_the_script_with_a_name_of_keras_is_another_kind(name: str) -> None:
    layer = type(name, (keras.layers.Layer,), {"__module__": "script.layers"})()
    assert describe_layer(layer, "layer", {})["kind"] == (name if name == "Block" else f"script.{name}")


def test_the_layer_of_a_time_distributed_is_described_with_its_input(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.TimeDistributed(keras.layers.Conv1D(2, 3)), keras.layers.Flatten()])
    model.compile("sgd", "mse")
    callback = FitRecorder(str(tmp_path), steps=1)
    x = np.random.default_rng(0).normal(size=(4, 2, 5, 3)).astype(np.float32)
    model.fit(x, np.ones([4, 12]), epochs=1, shuffle=False, verbose=0, callbacks=[callback])
    record = open_record(tmp_path)
    assert record.facts["model"] is not None
    (described,) = [layer for layer in record.facts["model"]["layers"] if layer["kind"] == "Conv1D"]
    assert [*described["variables"]] == ["kernel", "bias"]
    np.testing.assert_array_equal(record.ranks[0].open_step(1).read(f"layer/{described['path']}/input"), x)


@pytest.mark.parametrize("axes", [1, 2])
def test_grouped_convolutions_are_recorded_as_the_step_computes_them(axes: int, tmp_path: Path) -> None:
    """Outside of XLA, TensorFlow has no gradient of them on a CPU."""
    kind = keras.layers.Conv1D if axes == 1 else keras.layers.Conv2D
    keras.utils.set_random_seed(0)
    model = keras.Sequential([kind(6, 3, groups=3, strides=2, padding="same"), keras.layers.Flatten()])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, *[5] * axes, 9)).astype(np.float32)
    y = rng.normal(size=(4, 6 * 3**axes)).astype(np.float32)
    callback = FitRecorder(str(tmp_path), steps=2)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[callback])
    record = open_record(tmp_path)
    assert not any("could not be computed" in note for note in record.notes), record.notes
    before, step = record.ranks[0].start.select("weight"), record.ranks[0].open_step(1)
    gradients, after = step.select("gradient"), step.select("weight")
    (name,) = (name for name in gradients if name.endswith("kernel"))
    np.testing.assert_allclose(before[name] - after[name], 0.1 * gradients[name], rtol=1e-4, atol=1e-6)
    assert step.read(f"layer/{name.rpartition('/')[0]}/output").shape == (4, *[3] * axes, 6)
