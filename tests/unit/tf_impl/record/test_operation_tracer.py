"""Tests of the operations in a record, from the first call of the model to the loss."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from tensorflow.python.framework import op_callbacks

from tf_impl.record import FitRecorder, Recorder, operation_tracer

X = np.random.default_rng(0).standard_normal((16, 4)).astype("float32")
Y = np.random.default_rng(1).standard_normal((16, 3)).astype("float32")


class Scale(keras.layers.Layer):
    """A layer of the script's own."""

    def build(self, _: object) -> None:
        self.factor = self.add_weight(shape=(3,), initializer="ones", name="factor")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs * self.factor  # the line of Scale


def make_model(*layers: keras.layers.Layer) -> keras.Model:
    keras.backend.clear_session()  # names begin anew
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(3, activation="relu", name="dense"), *layers])


def compute_loss(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.log_softmax(outputs, axis=0) * labels)


def train(
    directory: Path | None,
    model: keras.Model,
    compute: Callable[[keras.Model, tf.Tensor, tf.Tensor], tf.Tensor],
    optimizer: Any = None,
    accumulate: int = 1,
    is_compiled: bool = False,
) -> list[float]:
    """Train three steps in a loop. Return the losses."""
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    recorder = Recorder(str(directory), model, optimizer, steps=2) if directory is not None else None

    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        batches = list(zip(tf.split(x, accumulate), tf.split(y, accumulate), strict=True))
        model(x)  # no loss depends on it
        gradients = [tf.zeros_like(variable) for variable in model.trainable_variables]
        for inputs, labels in batches:
            with tf.GradientTape() as tape:
                loss = compute(model, inputs, labels)
                target = optimizer.scale_loss(loss)
            parts = tape.gradient(target, model.trainable_variables)
            gradients = [total + part for total, part in zip(gradients, parts, strict=True)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = tf.function(train_step) if is_compiled else train_step
    losses = []
    for _ in range(3):
        if recorder is None:
            losses.append(float(step(tf.constant(X), tf.constant(Y))))
            continue
        with recorder.step():
            losses.append(float(step(tf.constant(X), tf.constant(Y))))
    assert not op_callbacks.should_invoke_op_callbacks()
    return losses


def read_trace(directory: Path) -> dict[str, Any]:
    """Return operations.json with the names of the tensors instead of their numbers, as far as they have names."""
    trace: dict[str, Any] = json.loads((directory / "operations.json").read_text())
    names = {number: name for name, number in reversed(trace["names"].items())}
    for operation in trace["operations"]:
        for key in ("inputs", "outputs"):
            operation[key] = [names.get(number, number) for number in operation[key]]
    assert trace["complete"]
    assert trace["operations"][-1]["outputs"] == [names.get(trace["loss"], trace["loss"])]
    return trace


def read_line(code: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if code in line)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_loss_written_by_hand_is_listed_operation_by_operation(tmp_path: Path, is_compiled: bool) -> None:
    def compute(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return compute_loss(y, model(x, training=True))

    losses = train(tmp_path, make_model(), compute, is_compiled=is_compiled)
    assert losses == train(None, make_model(), compute, is_compiled=is_compiled)
    trace = read_trace(tmp_path)
    dense, relu, *of_loss = trace["operations"]
    assert (dense["name"], dense["layer"], dense["arguments"]) == ("Dense", "model", {"units": 3, "use_bias": True})
    assert dense["inputs"][1:] == ["weight/sequential/dense/kernel", "weight/sequential/dense/bias"]
    assert dense["outputs"] == relu["inputs"] == ["layer/sequential/dense/output"]
    assert (relu["name"], relu["layer"]) == ("relu", "sequential/dense")
    assert {"layer/model/output", "batch/0/output/0"} <= {*trace["names"]}
    assert [operation["name"] for operation in of_loss] == ["Transpose", "LogSoftmax", "Transpose", "Mul", "Mean"]
    assert of_loss[0]["arguments"] == {"perm": [1, 0]}
    assert of_loss[-1]["arguments"] == {"axis": [0, 1], "keep_dims": False}
    line = read_line("return tf.reduce_mean(tf.nn.log_softmax")
    assert {(x["file"], x["line"]) for x in of_loss} == {("test_operation_tracer.py", line)}
    assert of_loss[0]["code"].startswith("return tf.reduce_mean")
    assert trace["tensors"][trace["loss"]]["sum"] == pytest.approx(losses[0], rel=1e-6)


def test_compiled_loss_of_keras_is_listed_operation_by_operation(tmp_path: Path) -> None:
    histories = []
    for callbacks in ([FitRecorder(str(tmp_path))], []):
        model = make_model(keras.layers.Dropout(0.5))
        model.compile(optimizer="adam", loss="mse")
        history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
        histories.append(history.history["loss"])
    assert histories[0] == histories[1]
    operations = read_trace(tmp_path)["operations"]
    assert [operation["name"] for operation in operations] == [
        "Dense", "relu", "Dropout", "Sub", "Square", "Mean", "Sum", "Prod", "Cast", "DivNoNan"
    ]  # fmt: skip
    assert operations[2]["arguments"] == {"rate": 0.5}
    assert operations[3]["inputs"] == ["batch/0/label/y_true", "layer/dropout/output"]
    assert all(operation["code"].startswith("history = model.fit") for operation in operations[3:])


@pytest.mark.parametrize("name", ["CTC", "ctc"])
def test_loss_with_a_loop_over_time_is_one_operation(name: str, tmp_path: Path) -> None:
    def compute(model: keras.Model, x: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        loss = getattr(keras.losses, name)
        return tf.reduce_mean((loss() if name == "CTC" else loss)(tf.ones((len(x), 2), tf.int32), model(x)))

    train(tmp_path, make_model(keras.layers.Reshape((3, 1)), keras.layers.Dense(4, name="frames")), compute)
    loss, mean = read_trace(tmp_path)["operations"][-2:]
    assert (loss["name"], mean["name"]) == (name, "Mean")
    assert loss["inputs"] == ["batch/0/label/y_true", "layer/sequential/frames/output"]


def test_function_of_the_script_is_no_loss_of_keras(tmp_path: Path) -> None:
    model = make_model()
    model.compile(optimizer="sgd", loss=compute_loss)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[FitRecorder(str(tmp_path))])
    operations = read_trace(tmp_path)["operations"]
    lines = [operation["line"] for operation in operations if operation["name"] == "LogSoftmax"]
    assert lines == [read_line("return tf.reduce_mean(tf.nn.log_softmax")]


def test_code_between_layers_is_listed(tmp_path: Path) -> None:
    inputs = keras.Input([4])
    hidden = keras.layers.Dense(3)(inputs)
    model = keras.Model(inputs, ops.multiply(ops.softmax(hidden, axis=-1), 0.5))
    model.compile(optimizer="sgd", loss="mse")
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[FitRecorder(str(tmp_path))])
    trace = read_trace(tmp_path)
    assert [x["name"] for x in trace["operations"][:4]] == ["Dense", "Softmax", "Mul", "Sub"]
    assert {x["layer"] for x in trace["operations"][:3]} == {"model"}
    (factor,) = (number for number in trace["operations"][2]["inputs"] if isinstance(number, int) and number > 0
                 and trace["tensors"][number]["shape"] == [])  # fmt: skip
    assert trace["tensors"][factor]["sum"] == 0.5


def test_layer_of_the_script_is_listed_operation_by_operation(tmp_path: Path) -> None:
    def compute(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return keras.losses.MeanSquaredError()(y, model(x))

    train(tmp_path, make_model(Scale(name="scale")), compute)
    product, *of_loss = read_trace(tmp_path)["operations"][2:]
    assert (product["name"], product["layer"]) == ("Mul", "sequential/scale")
    assert product["inputs"] == ["layer/sequential/scale/input", "weight/sequential/scale/factor"]
    assert (product["line"], product["code"]) == (
        read_line("# the line of Scale"),
        "return inputs * self.factor  # the line of Scale",
    )
    assert [x["name"] for x in of_loss[:3]] == ["Sub", "Square", "Mean"]
    assert {x["line"] for x in of_loss} == {read_line("return keras.losses.MeanSquaredError()(y")}


def test_only_the_first_micro_batch_is_listed_and_a_loss_has_no_scale(tmp_path: Path) -> None:
    def compute(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum((model(x) - y) ** 2)

    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=64.0)
    train(tmp_path, make_model(), compute, optimizer, accumulate=2)
    trace = read_trace(tmp_path)
    assert [x["name"] for x in trace["operations"]] == ["Dense", "relu", "Sub", "Pow", "Sum"]
    facts = json.loads((tmp_path / "record.json").read_text())
    loss = trace["tensors"][trace["loss"]]
    assert (loss["shape"], loss["sum"]) == ([], pytest.approx(facts["steps"][0]["losses"][0]))


def test_gradient_of_which_a_penalty_is_made_is_an_operation(tmp_path: Path) -> None:
    def compute(model: keras.Model, x: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = model(x)
        return tf.reduce_sum(tape.gradient(outputs, x) ** 2)

    train(tmp_path, make_model(), compute)
    assert [x["name"] for x in read_trace(tmp_path)["operations"]] == ["Dense", "relu", "gradient", "Pow", "Sum"]


def test_labels_that_no_loss_received_are_named(tmp_path: Path) -> None:
    model, optimizer = make_model(), keras.optimizers.SGD(0.1)
    recorder = Recorder(str(tmp_path), model, optimizer, steps=1)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.abs(model(x) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    with recorder.step():
        train_step(tf.constant(X), tf.constant(Y))
    (difference,) = (x for x in read_trace(tmp_path)["operations"] if x["name"] == "Sub")
    assert difference["inputs"][1] == "batch/0/label/1"


def test_version_that_reports_no_operations_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_tracer, "op_callbacks", None)
    train(tmp_path, make_model(), lambda model, x, y: compute_loss(y, model(x)))
    facts = json.loads((tmp_path / "record.json").read_text())
    assert facts["complete"]
    assert "operations" in [note.partition(":")[0] for note in facts["not_recorded"]]
    assert not (tmp_path / "operations.json").exists()


def test_error_of_the_trace_ends_the_trace_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("measured")

    monkeypatch.setattr(operation_tracer, "measure", fail)
    train(tmp_path, make_model(), lambda model, x, y: compute_loss(y, model(x)), is_compiled=False)
    facts = json.loads((tmp_path / "record.json").read_text())
    assert facts["complete"]
    assert any(
        note.startswith("operations: they were not seen (KeyError: 'measured')") for note in facts["not_recorded"]
    )
