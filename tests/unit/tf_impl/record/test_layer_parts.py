"""Tests of the operations of which recurrent layers and attentions of Keras consist."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tf_impl.record import FitRecorder

X = np.random.default_rng(0).standard_normal((8, 5, 4)).astype("float32")
CELL = {"MatMul": 2, "AddV2": 2, "BiasAdd": 1, "Split": 1, "Sigmoid": 3, "Tanh": 2, "Mul": 3}


class OwnCell(keras.layers.Layer):
    """A cell of the script's own."""

    state_size = 4

    def call(self, inputs: Any, states: Any) -> Any:
        state = keras.ops.sin(inputs + states[0])  # the line of OwnCell
        return state, [state]


def record(directory: Path, layer: Callable[[Any], Any]) -> dict[str, Any]:
    """Record a model that calls a layer. Return the layer's operation."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input([5, 4])
    outputs = keras.layers.Dense(1)(layer(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    model.fit(X, np.zeros(8), batch_size=4, verbose=0, callbacks=[FitRecorder(str(directory), steps=1)])
    trace = json.loads((directory / "operations.json").read_text())
    operation: dict[str, Any] = trace["operations"][0]
    assert trace["complete"]
    assert operation["outputs"] == operation["parts"][-1]["outputs"]
    assert "parts" not in trace["operations"][1]
    return operation


@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layer_lists_each_time_step(tmp_path: Path, directions: int) -> None:
    layer: keras.layers.Layer = keras.layers.LSTM(3)
    operation = record(tmp_path, layer if directions == 1 else keras.layers.Bidirectional(layer))
    counts = Counter(part["name"] for part in operation["parts"])
    assert {name: counts[name] for name in CELL} == {name: 5 * directions * count for name, count in CELL.items()}
    assert all("parts" not in part for part in operation["parts"])


def test_cell_of_the_script_lists_its_line(tmp_path: Path) -> None:
    parts = record(tmp_path, keras.layers.RNN(OwnCell()))["parts"]
    assert [part["code"] for part in parts if part["name"] == "Sin"] == [
        "state = keras.ops.sin(inputs + states[0])  # the line of OwnCell"
    ] * 5


@pytest.mark.parametrize("kind", ["MultiHeadAttention", "Attention"])
def test_attention_lists_its_operations(tmp_path: Path, kind: str) -> None:
    whole, projected = keras.layers.Attention(), keras.layers.MultiHeadAttention(2, 3)
    attend = {"Attention": lambda x: whole([x, x]), "MultiHeadAttention": lambda x: projected(x, x)}[kind]
    names = [part["name"] for part in record(tmp_path, attend)["parts"]]
    if kind == "Attention":
        assert names == ["Transpose", "BatchMatMulV2", "Softmax", "BatchMatMulV2"]
    else:
        assert names == ["EinsumDense"] * 3 + ["Einsum", "Mul", "Softmax", "Einsum", "EinsumDense"]
