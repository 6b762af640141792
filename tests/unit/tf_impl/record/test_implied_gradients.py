"""Tests of rehearsals that leave out the backward pass, because the slots imply the gradients."""

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from common.recording.record_reader import open_record
from tf_impl.record import FitRecorder, Recorder

BACKWARD_PASSES: list[str] = []  # "eager" or "compiled" for each backward pass that Python computed


class Watched(keras.layers.Layer):
    """Returns what it receives, and notes each backward pass."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def compute(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def differentiate(gradient: tf.Tensor) -> tf.Tensor:
                BACKWARD_PASSES.append("eager" if hasattr(gradient, "numpy") else "compiled")
                return gradient

            return tf.identity(x), differentiate

        return compute(x)


def fit(directory: Path, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    BACKWARD_PASSES.clear()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(8, "tanh"), Watched(), keras.layers.Dense(1)])
    model.compile(optimizer, loss=keras.losses.MeanSquaredError(), jit_compile=False)
    rng = np.random.default_rng(0)
    inputs, labels = rng.standard_normal((24, 4), np.float32), rng.standard_normal((24, 1), np.float32)
    model.fit(inputs, labels, batch_size=8, shuffle=False, verbose=0, callbacks=[FitRecorder(str(directory))])
    return model


@pytest.mark.parametrize(
    ("optimizer", "passes"),
    [
        (keras.optimizers.Adam(0.1), 1),
        (keras.optimizers.SGD(0.1, momentum=0.9), 1),
        (keras.optimizers.Adam(0.1, global_clipnorm=1e3), 3),  # may clip in a later step
        (keras.optimizers.SGD(0.1), 3),
    ],
)
def test_only_gradients_that_the_slots_do_not_imply_are_computed(
    optimizer: keras.optimizers.Optimizer, passes: int, tmp_path: Path
) -> None:
    fit(tmp_path, optimizer)
    assert BACKWARD_PASSES.count("eager") == passes


def test_gradients_and_terms_of_later_steps_are_recorded(tmp_path: Path) -> None:
    model = fit(tmp_path, keras.optimizers.Adam(0.1))
    record = open_record(tmp_path)
    assert record.facts["not_recorded"] == []
    for step in (2, 3):
        weights, arrays = (load_file(tmp_path / f"step-{number:08d}.safetensors") for number in (step - 1, step))
        for variable in model.variables:
            variable.assign(weights[f"weight/{variable.path}"])
        with tf.GradientTape() as tape:
            error = model(arrays["batch/0/input/0"]) - arrays["batch/0/label/y_true"]
            loss = tf.reduce_mean(error**2)
        gradients = tape.gradient(loss, model.trainable_variables)
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            np.testing.assert_allclose(arrays[f"gradient/{variable.path}"], gradient, rtol=1e-3, atol=1e-6)
        (facts,) = record.get_step_facts(step)
        assert facts["losses"] == pytest.approx([float(loss)])
        assert [term["share"] for term in facts["terms"][0]] == pytest.approx([float(loss)])


@pytest.mark.parametrize(("factor", "passes"), [(1.0, 1), (0.5, 3)])
def test_an_own_loop_that_changes_gradients_computes_them(factor: float, passes: int, tmp_path: Path) -> None:
    BACKWARD_PASSES.clear()
    model, optimizer = keras.Sequential([keras.Input([4]), keras.layers.Dense(8), Watched()]), keras.optimizers.Adam()

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(x[:, :1], model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        scaled = gradients if factor == 1 else [gradient * factor for gradient in gradients]
        optimizer.apply_gradients(list(zip(scaled, model.trainable_variables, strict=True)))
        return loss

    recorder = Recorder(str(tmp_path), model, optimizer)
    for _ in range(3):
        with recorder.step():
            step(tf.ones([2, 4]))
    assert BACKWARD_PASSES.count("eager") == passes
