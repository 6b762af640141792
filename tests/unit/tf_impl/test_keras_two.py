"""A Keras 2 model as a layer of Keras 3: its variables, its layers and its files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.errors import UserError
from common.map.description import Arrays
from common.map.keras_paths import layers_by_path
from common.map.noise import Noise
from tf_impl.aligned_layers import align_dropout, use_dropout_keys
from tf_impl.batch_norm import synchronize_batch_norm
from tf_impl.described_state import read_state
from tf_impl.forward_trace import ForwardTrace
from tf_impl.keras_two import KerasTwoModel, build_user_model
from tf_impl.models import custom

tf_keras = pytest.importorskip("tf_keras", reason="needs Keras 2: pip install tf_keras")
pytestmark = pytest.mark.slow

FACTORY = f"{__name__}:build"
FILES = ("whole.h5", "own.h5", "own.weights.h5", "whole.keras", "saved", "checkpoint/weights")


def build() -> Any:
    inputs = tf_keras.Input((4, 4, 1), name="images")
    x = tf_keras.layers.BatchNormalization()(tf_keras.layers.Conv2D(2, 3)(inputs))
    x = tf_keras.Sequential([tf_keras.layers.Flatten(), tf_keras.layers.Dense(3)], name="inner")(x)
    return tf_keras.Model(inputs, tf_keras.layers.Dense(2)(x))


@pytest.fixture
def float64() -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(before)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[np.ndarray]]:
    """Return a directory with the files of a float32 model, and its weights."""
    directory, stream = tmp_path_factory.mktemp("stored"), np.random.default_rng(0)
    model = build_user_model("model.tf", FACTORY, {}).keras_two
    model.set_weights([stream.random(array.shape).astype(np.float32) for array in model.get_weights()])
    for name in ("whole.h5", "whole.keras", "saved"):
        model.save(directory / name)
    for name in ("own.h5", "own.weights.h5", "checkpoint/weights"):
        model.save_weights(directory / name)
    return directory, model.get_weights()


def test_layers_and_variables_have_paths_and_share_their_values() -> None:
    model = build_user_model("model.tf", FACTORY, {})
    assert isinstance(model, KerasTwoModel)
    outer = keras.Sequential([model])
    assert [variable.path for variable in outer.variables] == [variable.path for variable in model.variables]
    statistics = [f"batch_normalization/moving_{name}" for name in ("mean", "variance")]
    assert [variable.path for variable in outer.non_trainable_variables] == statistics
    assert {"conv2d", "batch_normalization", "inner", "inner/dense", "dense_1"} < layers_by_path(model).keys()
    kernel = next(variable for variable in outer.trainable_variables if variable.path == "inner/dense/kernel")
    kernel.assign(tf.fill(kernel.shape, 7.0))
    assert (model.keras_two.get_layer("inner").get_weights()[0] == 7).all()


def test_variables_that_are_divided_over_servers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_user_model("model.tf", FACTORY, {})
    variable = model.variables[0]
    monkeypatch.setattr(custom, "variables_by_path", lambda model: {f"dense/part_{i}": variable for i in (0, 1)})
    with pytest.raises(UserError, match=r"^strategy\.parameter_servers: .* such as dense/part_0, .*; set it to 1"):
        custom._build_parameters(model, {}, None)


def test_dropout_works_in_a_call_that_does_not_take_the_mode() -> None:
    class Plain(tf_keras.Model):  # type: ignore[name-defined]  # an optional package
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.norm = tf_keras.layers.Dropout(0.5), tf_keras.layers.BatchNormalization()

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return self.norm(self.dropout(x))

    model, x = KerasTwoModel(Plain()), tf.ones((4, 50))
    evaluated, trained = (np.asarray(model(x, training=training)) for training in (False, True))
    assert np.ptp(evaluated) < 1e-6
    assert np.ptp(trained) > 1
    assert model.keras_two.norm.moving_mean.numpy().any()


@pytest.mark.filterwarnings("error:.*build")
def test_a_trace_of_a_model_around_it_records_what_its_layers_return() -> None:
    class Outer(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build_user_model("model.tf", FACTORY, {})

        def call(self, x: tf.Tensor) -> object:
            return self.inner(x)

    outer, x = Outer(), tf.ones((2, 4, 4, 1))
    with ForwardTrace(outer) as trace:
        outputs = outer(x)
    recorded = trace.calls["dense_1"].returned
    assert recorded is not None
    np.testing.assert_array_equal(recorded, outputs)
    assert trace.counts["conv2d"] == 1


def build_noisy(package: Any) -> Any:
    inputs = package.Input((6,), name="x")
    x = package.layers.BatchNormalization(momentum=0.9)(inputs)
    return package.Model(inputs, package.layers.Dropout(0.5)(x))


def build_noisy_two() -> Any:
    return build_noisy(tf_keras)


def build_noisy_three() -> Any:
    return build_noisy(keras)


def test_aligned_layers_compute_the_same_in_both_versions() -> None:
    x = tf.constant(np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32))
    computed = []
    for name in ("build_noisy_two", "build_noisy_three"):
        model = build_user_model("model.tf", f"{__name__}:{name}", {})
        synchronize_batch_norm(model, over_replicas=False)
        align_dropout(layers_by_path(model)["dropout"], "drop", Noise("drop", "element", 0.5), None)
        with use_dropout_keys(tf.range(5, dtype=tf.int64)):
            outputs = tf.function(lambda x, model=model: model(x, training=True))(x)
        computed.append((outputs.numpy(), *(array for _, array in sorted(read_state(model).items()))))
    assert (computed[0][0] == 0).any()
    for two, three in zip(*computed, strict=True):
        np.testing.assert_allclose(two, three, rtol=1e-6)
    np.testing.assert_allclose(computed[0][-1], 0.9 + 0.1 * np.var(x, axis=0, ddof=1), rtol=1e-5)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", FILES)
def test_files_of_keras_2_are_loaded_in_the_type_of_the_model(stored: tuple[Path, list[np.ndarray]], name: str) -> None:
    directory, weights = stored
    model = build_user_model("model.tf", FACTORY, {})
    model.load_weights(str(directory / name))
    loaded: Arrays = read_state(model)
    assert {array.dtype.name for array in loaded.values()} == {"float64"}
    by_identity = {id(variable): array for variable, array in zip(model.keras_two.weights, weights, strict=True)}
    for variable in model.variables:
        np.testing.assert_array_equal(loaded[variable.path], by_identity[id(variable.value)])
