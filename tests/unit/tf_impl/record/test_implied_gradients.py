"""Tests of rehearsals that leave out the backward pass, because the slots imply the gradients."""

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from common.recording.record_reader import open_record
from tf_impl.record import FitRecorder

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


def fit(directory: Path, optimizer: keras.optimizers.Optimizer, kind: type[keras.Model] = keras.Model) -> keras.Model:
    BACKWARD_PASSES.clear()
    keras.utils.set_random_seed(0)
    received = keras.Input([4])
    model = kind(received, keras.layers.Dense(1)(Watched()(keras.layers.Dense(8, "tanh")(received))))
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


class OwnStep(keras.Model):
    """Returns the norm of the gradients beside the loss."""

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(list(zip(gradients, self.trainable_variables, strict=True)))
        return {"loss": loss, "norm": tf.linalg.global_norm(gradients)}


def test_an_own_step_may_use_the_gradients(tmp_path: Path) -> None:
    fit(tmp_path, keras.optimizers.Adam(0.1), OwnStep)
    assert BACKWARD_PASSES.count("eager") == 3
    assert open_record(tmp_path).facts["not_recorded"] == []
