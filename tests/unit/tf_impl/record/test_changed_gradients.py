"""Tests of gradients that the script changes between the tape and the optimizer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.walk import diagnose_records
from common.recording.record_reader import open_record
from tf_impl.record import Recorder

DATA = np.random.default_rng(0).standard_normal((24, 5)).astype("float32")
DECAY = 0.01
Edit = Callable[[list[Any], list[Any]], list[Any]]  # from gradients and variables to the changed gradients


def train(directory: Path, edit: Edit, is_compiled: bool = True, parts: int = 1, optimizer: Any = None) -> Path:
    """Train with changed sums of the gradients of parts of each batch. Return the record."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    optimizer = optimizer or keras.optimizers.SGD(0.1, momentum=0.9)

    def train_step(rows: tf.Tensor) -> None:
        weights = model.trainable_variables
        total: list[Any] = [0.0] * len(weights)
        for part in tf.split(rows, parts):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.mean_squared_error(part[:, 4:], model(part[:, :4])))
            total = [x + gradient / parts for x, gradient in zip(total, tape.gradient(loss, weights), strict=True)]
        optimizer.apply_gradients(zip(edit(total, weights), weights, strict=True))

    step = tf.function(train_step) if is_compiled else train_step
    recorder = Recorder(str(directory), model, optimizer)
    for rows in tf.data.Dataset.from_tensor_slices(DATA).batch(8):
        with recorder.step():
            step(rows)
    return directory


def read_facts(directory: Path) -> list[dict[str, Any]]:
    facts: dict[str, Any] = json.loads((directory / "record.json").read_text())
    assert facts["not_recorded"] == []
    steps: list[dict[str, Any]] = facts["steps"]
    return steps


def list_stored(directory: Path, step: int = 1) -> set[str]:
    """Return the names of the gradients before the change in the file of a step."""
    names = load_file(directory / f"step-0000000{step}.safetensors")
    return {name.partition("/")[2] for name in names if name.startswith("gradient_unclipped/")}


def decay(gradients: list[Any], variables: list[Any]) -> list[Any]:
    return [gradient + DECAY * variable for gradient, variable in zip(gradients, variables, strict=True)]


def clip_each(gradients: list[Any], variables: list[Any]) -> list[Any]:
    return [tf.clip_by_norm(gradient, 0.5) for gradient in gradients]


def clip(gradients: list[Any], variables: list[Any]) -> list[Any]:
    return tf.clip_by_global_norm(gradients, 0.1)[0]


def mask(gradients: list[Any], variables: list[Any]) -> list[Any]:
    return [tf.where(variable > 0, gradient, 0.0) for gradient, variable in zip(gradients, variables, strict=True)]


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_decay_is_recorded_as_a_number(is_compiled: bool, parts: int, tmp_path: Path) -> None:
    train(tmp_path, decay, is_compiled, parts)
    steps = read_facts(tmp_path)
    # Biases begin with 0
    assert [len(step["decays"]) for step in steps] == [2, 4, 4]
    assert all(number == pytest.approx(DECAY, rel=0.02) for step in steps for number in step["decays"].values())
    assert [step.get("clip_factors") for step in steps] == [None] * 3
    assert list_stored(tmp_path) == set()


@pytest.mark.parametrize("parts", [1, 2])
def test_a_clipping_of_each_variable_is_recorded_as_factors(parts: int, tmp_path: Path) -> None:
    train(tmp_path / "a", clip_each, parts=parts)
    steps = read_facts(tmp_path / "a")
    assert all(0 < factor < 1 for step in steps for factor in step["clip_factors"].values())
    assert "decays" not in steps[0]
    assert list_stored(tmp_path / "a") == set()
    train(tmp_path / "b", clip)
    (cause,) = diagnose_records(tmp_path / "b", tmp_path / "a").causes
    assert cause.cause == "clipped_per_variable"
    assert "clipped to the norm of each variable 0.5 in B" in cause.sentence


def test_another_change_is_recorded_as_arrays_once(tmp_path: Path) -> None:
    train(tmp_path / "masked", mask)
    stored = list_stored(tmp_path / "masked")
    assert list_stored(tmp_path / "masked", 2) == set()
    assert {"sequential/dense/kernel", "sequential/dense_1/kernel"} <= stored
    train(tmp_path / "plain", lambda gradients, _: gradients)
    diagnosis = diagnose_records(tmp_path / "plain", tmp_path / "masked")
    assert [cause.cause for cause in diagnosis.causes] == ["changed_gradients"]
    assert diagnose_records(tmp_path / "masked", tmp_path / "masked").is_equal


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (lambda gradients, _: gradients, 1),
        (lambda gradients, _: gradients, 2),
        (lambda gradients, _: [tf.identity(gradient) for gradient in gradients], 1),
        (mask, 2),  # the sum of the tapes need not be what the script masks
    ],
    ids=["none", "sum", "copy", "mask of a sum"],
)
def test_nothing_else_is_recorded(edit: Edit, parts: int, tmp_path: Path) -> None:
    train(tmp_path, edit, parts=parts)
    assert not any("clip_factors" in step or "decays" in step for step in read_facts(tmp_path))
    assert list_stored(tmp_path) == set()


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda gradients, variables: decay(clip(gradients, variables), variables), "A"),
        (lambda gradients, variables: clip(decay(gradients, variables), variables), "B"),
    ],
)
def test_the_place_of_a_decay_beside_a_clipping_is_known(edit: Edit, place: str, tmp_path: Path) -> None:
    reference = train(tmp_path / "a", lambda g, v: decay(clip(g, v), v))
    causes = diagnose_records(reference, train(tmp_path / "b", edit)).causes
    assert [cause.cause for cause in causes] == (["decay_before_clipping"] if place == "B" else [])


@pytest.mark.parametrize("argument", ["clipnorm", "global_clipnorm"])
def test_a_decay_that_the_optimizer_clips(argument: str, tmp_path: Path) -> None:
    optimizers = [keras.optimizers.SGD(0.1, momentum=0.9, **{argument: 0.1}) for _ in range(2)]
    decayed = train(tmp_path / "a", decay, optimizer=optimizers[0])
    side = RecordedSide("a", open_record(decayed))
    assert side.changes.is_decay_clipped
    assert [*side.changes.decays.values()] == [pytest.approx(DECAY, rel=1e-3)] * 4
    causes = diagnose_records(decayed, train(tmp_path / "b", lambda g, _: g, optimizer=optimizers[1])).causes
    assert [cause.cause for cause in causes] == ["no_weight_decay"]


def test_the_record_of_a_decay_is_as_large_as_without(tmp_path: Path) -> None:
    sizes = [
        sum(
            file.stat().st_size for file in train(tmp_path / name, edit, optimizer=keras.optimizers.Adam()).glob("*.s*")
        )
        for name, edit in {"plain": lambda gradients, _: gradients, "decayed": decay}.items()
    ]
    assert sizes[1] <= sizes[0]
