"""Scripts that call a model several times in a step, and recorders of several models in one step."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from common.diagnose.recorded.walk import diagnose_records
from tf_impl.record import FitRecorder, Recorder

REAL = np.random.default_rng(0).standard_normal((24, 4)).astype("float32")
NOISE = np.random.default_rng(1).standard_normal((24, 3)).astype("float32")


def read_facts(directory: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((directory / "record.json").read_text())
    return facts


def list_functions() -> list[object]:
    """Return the functions that a recorder may replace."""
    function = type(tf.function(lambda: None))
    return [function.__call__, keras.Layer.__call__, tf.reshape, tf.GradientTape.gradient, keras.losses.Loss.__call__]


def train_gan(directory: Path | None, seed: int, follow: Path | None = None, steps: int = 3) -> list[float]:
    """Train the discriminator, then the generator, and record both if there is a directory. Return their losses."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    generator = keras.Sequential([keras.Input([3]), layers.Dense(4)])
    discriminator = keras.Sequential([keras.Input([4]), layers.Dense(5), layers.LeakyReLU(), layers.Dense(1)])
    optimizers = [keras.optimizers.SGD(0.1, momentum=0.5) for _ in range(2)]
    bce = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def train_step(real: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            real_outputs, fake_outputs = discriminator(real), discriminator(generator(noise))
            loss = bce(tf.ones_like(real_outputs), real_outputs) + bce(tf.zeros_like(fake_outputs), fake_outputs)
        weights = discriminator.trainable_variables
        optimizers[0].apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            outputs = discriminator(generator(noise))
            generator_loss = bce(tf.ones_like(outputs), outputs)
        weights = generator.trainable_variables
        optimizers[1].apply_gradients(zip(tape.gradient(generator_loss, weights), weights, strict=True))
        return loss, generator_loss

    batches: Any = tf.data.Dataset.from_tensor_slices((REAL, NOISE)).batch(8)
    if directory is None:
        return [float(loss) for batch in batches for loss in train_step(*batch)]
    recorders = []
    for name, model, optimizer in zip("dg", (discriminator, generator), optimizers, strict=True):
        options: dict[str, Any] = {} if follow is None else {"follow": str(follow / name)}
        count = steps if name == "d" else 2  # the recorder of the generator ends first
        recorders.append(Recorder(str(directory / name), model, optimizer, steps=count, **options))
        batches = batches if follow is None else recorders[-1].batches(batches)
    losses = []
    for batch in batches:
        with recorders[0].step(), recorders[1].step():
            losses += [float(loss) for loss in train_step(*batch)]
    return losses


@pytest.mark.parametrize("weight", [0.5, 0.05])
def test_the_weight_of_a_loss_is_compared(weight: float, tmp_path: Path) -> None:
    for name, factor in (("a", 0.5), ("b", weight)):
        keras.utils.set_random_seed(0)
        inputs = keras.Input([4])
        outputs = [keras.layers.Dense(size)(inputs) for size in (3, 1)]
        model = keras.Model(inputs, outputs)
        crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(), [crossentropy, "mse"], loss_weights=[1, factor])
        labels = [np.arange(24) % 3, NOISE[:, 0]]
        recorder = FitRecorder(str(tmp_path / name))
        model.fit(REAL, labels, batch_size=8, shuffle=False, verbose=0, callbacks=[recorder])
    (terms,) = read_facts(tmp_path / "b")["steps"][0]["terms"]
    assert terms[1]["share"] == pytest.approx(weight * terms[1]["value"])
    diagnosis = diagnose_records(tmp_path / "a", tmp_path / "b")
    assert diagnosis.is_equal == (weight == 0.5), diagnosis.headline
    if not diagnosis.is_equal:
        assert [(cause.cause, cause.confirmed) for cause in diagnosis.causes] == [("loss_weight", True)]
        assert "the weight of the squared error in the loss is 0.5 in A and 0.05 in B" in diagnosis.headline


def test_equal_heads_are_recorded_in_the_order_of_their_variables(tmp_path: Path) -> None:
    inputs = keras.Input([4])
    hidden = keras.layers.Dense(4, name="body")(inputs)
    heads = [keras.layers.Dense(3, name=name)(hidden) for name in ("first", "second", "third")]
    model = keras.Model(inputs, heads)
    model.compile(keras.optimizers.SGD(), ["mse"] * 3)
    model.fit(REAL, [REAL[:, :3]] * 3, batch_size=8, verbose=0, callbacks=[FitRecorder(str(tmp_path))])
    layers = [layer["path"] for layer in read_facts(tmp_path)["model"]["layers"]]
    assert [path for path in layers if path != "model"] == ["body", "first", "second", "third"]


def test_recorders_of_both_models_of_a_gan_record_one_step(tmp_path: Path) -> None:
    functions = list_functions()
    assert train_gan(tmp_path / "a", seed=0) == train_gan(None, seed=0)
    assert list_functions() == functions
    d, g = (read_facts(tmp_path / "a" / name) for name in "dg")
    assert [len(facts["steps"]) for facts in (d, g)] == [3, 2]
    assert [step["micro_batches"] for facts in (d, g) for step in facts["steps"]] == [1] * 5
    assert [facts["steps"][0]["calls"] for facts in (d, g)] == [[2], [1]]
    first = load_file(tmp_path / "a/d/step-00000001.safetensors")
    np.testing.assert_array_equal(first["batch/0/input/0"], REAL[:8])
    assert first["batch/0/call/1/input/0"].shape == (8, 4)
    assert "batch/0/call/2/input/0" not in first
    # The generator's call for the discriminator's loss is not one of its own loss
    assert not [name for name in load_file(tmp_path / "a/g/step-00000001.safetensors") if "/call/" in name]
    assert not [sentence for sentence in g["not_recorded"] if "differ" in sentence]


def test_both_models_of_a_gan_follow_their_records(tmp_path: Path) -> None:
    train_gan(tmp_path / "a", seed=0)
    train_gan(tmp_path / "b", seed=1, follow=tmp_path / "a")
    for name in "dg":
        diagnosis = diagnose_records(tmp_path / "a" / name, tmp_path / "b" / name)
        assert diagnosis.is_equal, diagnosis.headline
    notes = read_facts(tmp_path / "b/d")["not_recorded"]
    assert [note for note in notes if note.startswith("batches: 1 gets other 1: arrays of the followed script's batch")]


def test_a_layer_that_follows_does_not_change_a_later_call(tmp_path: Path) -> None:
    """The second call uses the moving statistics that the first one leaves."""

    def train(directory: Path, seed: int, follow: str | None = None) -> None:
        keras.utils.set_random_seed(seed)
        model = keras.Sequential(
            [keras.Input([4]), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(2)]
        )
        optimizer = keras.optimizers.SGD(0.1)

        @tf.function
        def train_step(x: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - model(x + 1, training=False)) ** 2)
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        recorder = Recorder(str(directory), model, optimizer, follow=follow)
        batches: Any = tf.data.Dataset.from_tensor_slices(REAL).batch(8)
        for x in batches if follow is None else recorder.batches(batches):
            with recorder.step():
                train_step(x)

    train(tmp_path / "a", 0)
    train(tmp_path / "b", 1, follow=str(tmp_path / "a"))
    assert not [sentence for sentence in read_facts(tmp_path / "b")["not_recorded"] if "differ" in sentence]
    diagnosis = diagnose_records(tmp_path / "a", tmp_path / "b")
    assert diagnosis.is_equal, diagnosis.headline


def differentiate_two_losses(tape: Any, outputs: tf.Tensor, model: keras.Model) -> list[tf.Tensor]:
    with tape:
        losses = tf.reduce_mean(outputs**2), tf.reduce_mean(tf.abs(outputs))
    weights = model.trainable_variables
    gradients = [tape.gradient(loss, weights) for loss in losses]
    return [a + b for a, b in zip(*gradients, strict=True)]


def differentiate_by_layers(tape: Any, outputs: tf.Tensor, model: keras.Model) -> list[tf.Tensor]:
    with tape:
        loss = tf.reduce_mean(outputs**2)
    return [gradient for layer in model.layers for gradient in tape.gradient(loss, layer.trainable_variables)]


@pytest.mark.parametrize(
    ("differentiate", "is_called", "count"),
    [
        (differentiate_two_losses, True, 2),
        (differentiate_by_layers, True, 1),
        (differentiate_two_losses, False, 2),
        (differentiate_by_layers, False, 1),
    ],
)
def test_every_gradient_of_a_tape_is_recorded(differentiate: Any, is_called: bool, count: int, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD(0.1)
    first, last = model.layers

    @tf.function
    def train_step(x: tf.Tensor) -> None:
        tape = tf.GradientTape(persistent=True)
        with tape:  # a script may compute with the variables, so that the model's call is not seen
            outputs = model(x) if is_called else (x @ first.kernel + first.bias) @ last.kernel + last.bias
        gradients = differentiate(tape, outputs, model)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    recorder = Recorder(str(tmp_path), model, optimizer, steps=1)
    expected = model(REAL).numpy()
    with recorder.step():
        train_step(tf.constant(REAL))
    (step,) = read_facts(tmp_path)["steps"]
    losses = [(expected**2).mean(), np.abs(expected).mean()]
    assert step["micro_batches"] == count
    assert step["losses"] == pytest.approx(losses[:count], rel=1e-5)
