"""Tests of the order of the layers of functional models."""

import json
from pathlib import Path

import keras
import numpy as np

from tf_impl.record import FitRecorder

X = np.random.default_rng(0).normal(size=(8, 12, 2)).astype("float32")


def test_parallel_branches_are_in_the_order_of_their_blocks(tmp_path: Path) -> None:
    """Keras calls the skip connections of a WaveNet last, and in the reverse order."""
    outputs, skips = keras.layers.Conv1D(2, 1, name="causal")(inputs := keras.Input((12, 2))), []
    for block in range(3):
        gated = keras.layers.Conv1D(2, 2, padding="causal", activation="tanh", name=f"gate_{block}")(outputs)
        skips.append(keras.layers.Conv1D(3, 1, name=f"skip_{block}")(gated))
        outputs = keras.layers.Add()([outputs, keras.layers.Conv1D(2, 1, name=f"residual_{block}")(gated)])
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(keras.layers.Add()(skips)))
    model.compile("sgd", "mse")
    model.fit(X, X[..., :1], batch_size=4, verbose=0, callbacks=[FitRecorder(str(tmp_path / "record"), steps=1)])
    layers = json.loads((tmp_path / "record/record.json").read_text())["model"]["layers"]
    paths = [layer["path"].rpartition("/")[2] for layer in layers]
    for kind in ("gate", "skip"):
        assert [path for path in paths if kind in path] == [f"{kind}_{block}" for block in range(3)]
    assert paths[-1] == "head"


def test_two_inputs_are_in_the_order_of_their_definition(tmp_path: Path) -> None:
    """The decoder receives its own embedding before that of the encoder, which is computed first."""
    inputs = [keras.Input((12, 2)), keras.Input((12, 2))]
    encoded = keras.layers.Dense(4, name="encoder")(keras.layers.Dense(4, name="embedding_1")(inputs[0]))
    embedded = keras.layers.Dense(4, name="embedding_2")(inputs[1])
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Add()([embedded, encoded])))
    model.compile("sgd", "mse")
    model.fit([X, X], X, batch_size=4, verbose=0, callbacks=[FitRecorder(str(tmp_path / "record"), steps=1)])
    layers = json.loads((tmp_path / "record/record.json").read_text())["model"]["layers"]
    paths = [layer["path"].rpartition("/")[2] for layer in layers]
    assert [path for path in paths if "embedding" in path] == ["embedding_1", "embedding_2"]


def test_nested_models_keep_their_layers_together(tmp_path: Path) -> None:
    parts = []
    for name in ("encoder", "decoder"):
        hidden = keras.layers.Dense(4, name=f"{name}_first")(inputs := keras.Input((12, 2)))
        parts.append(keras.Model(inputs, keras.layers.Dense(2, name=f"{name}_last")(hidden), name=name))
    outputs = parts[1](keras.layers.Dense(2, name="middle")(parts[0](inputs := keras.Input((12, 2)))))
    model = keras.Model(inputs, outputs, name="whole")
    model.compile("sgd", "mse")
    model.fit(X, X, batch_size=4, verbose=0, callbacks=[FitRecorder(str(tmp_path / "record"), steps=1)])
    layers = json.loads((tmp_path / "record/record.json").read_text())["model"]["layers"]
    assert [layer["path"].rpartition("/")[2] for layer in layers] == [
        "model", "encoder", "encoder_first", "encoder_last", "middle", "decoder", "decoder_first", "decoder_last"
    ]  # fmt: skip


def test_branches_are_in_the_order_in_which_the_script_calls_their_layers(tmp_path: Path) -> None:
    """Keras computes the longer branch of an hourglass first."""
    outer = keras.layers.Dense(2, name="outer")(inputs := keras.Input((12, 2)))
    inner = keras.layers.Dense(2, name="inner_1")(inputs)
    inner = keras.layers.Dense(2, name="inner_2")(inner)
    model = keras.Model(inputs, keras.layers.Add()([outer, inner]))
    model.compile("sgd", "mse")
    model.fit(X, X, batch_size=4, verbose=0, callbacks=[FitRecorder(str(tmp_path / "record"), steps=1)])
    layers = json.loads((tmp_path / "record/record.json").read_text())["model"]["layers"]
    paths = [layer["path"].rpartition("/")[2] for layer in layers if layer["variables"]]
    assert paths == ["outer", "inner_1", "inner_2"]


class Trained(keras.Model):
    """A functional model of a class of the script, as keras.io's examples with a `train_step` have it."""


def test_heads_of_a_functional_model_of_a_script_are_in_the_order_of_their_definition(tmp_path: Path) -> None:
    inputs = keras.Input((12, 2))
    hidden = [keras.layers.Dense(4, activation="relu", name=f"hidden_{name}")(inputs) for name in "abc"]
    heads = [keras.layers.Dense(2, name=f"head_{name}")(x) for name, x in zip("abc", hidden, strict=True)]
    model = Trained(inputs, heads)
    model.compile("sgd", ["mse"] * 3)
    model.fit(X, [X] * 3, batch_size=4, verbose=0, callbacks=[FitRecorder(str(tmp_path / "record"), steps=1)])
    layers = json.loads((tmp_path / "record/record.json").read_text())["model"]["layers"]
    paths = [layer["path"].rpartition("/")[2] for layer in layers]
    assert [path for path in paths if "head" in path] == ["head_a", "head_b", "head_c"]
    sources = {layer["path"].rpartition("/")[2]: layer.get("sources") for layer in layers}
    assert [sources[f"head_{name}"] for name in "abc"] == [[f"hidden_{name}"] for name in "abc"]


def test_each_of_several_flattened_arrays_of_one_size_has_its_shape(tmp_path: Path) -> None:
    inputs = keras.Input((4, 4, 2))
    maps = [keras.layers.Conv2D(3, 1)(inputs) for _ in range(2)]
    outputs = [keras.layers.Dense(2, name=f"fc{i}")(keras.layers.Flatten()(x)) for i, x in enumerate(maps)]
    model = keras.Model(inputs, [*outputs, keras.layers.Dense(2, name="late")(keras.layers.Dense(48)(outputs[0]))])
    model.compile("sgd", ["mse"] * 3)
    images, labels = np.ones((4, 4, 4, 2), "float32"), np.zeros((4, 2), "float32")
    callbacks = [FitRecorder(str(tmp_path / "record"), steps=1)]
    model.fit(images, [labels] * 3, batch_size=4, verbose=0, callbacks=callbacks)
    layers = json.loads((tmp_path / "record/record.json").read_text())["model"]["layers"]
    shapes = {layer["path"].rpartition("/")[2]: layer["unflattened_shape"] for layer in layers}
    assert [shapes[name] for name in ("fc0", "fc1", "late")] == [[4, 4, 3], [4, 4, 3], None]
