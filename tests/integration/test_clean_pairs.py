"""Records of scripts of different kinds that train the same: their diagnosis finds no difference."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.diagnose.recorded.walk import diagnose_records
from tests.conftest import ROOT
from tf_impl.record import FitRecorder, Recorder

# Two devices for MirroredStrategy, before the first test of any file of this process initializes TensorFlow
with contextlib.suppress(RuntimeError):
    CPU = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)

Arrays = Mapping[str, np.ndarray]
STEPS, BATCH = 4, 16
SHAPES = {
    "mlp": [(10, 16), (16,), (16,), (16,), (16, 3), (3,)],
    "cnn": [(3, 3, 3, 4), (4,), (64, 3), (3,)],
}
TORCH_SECONDS = 300


def draw_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        f"{name}{i}": (0.3 * rng.standard_normal(shape)).astype("float32")
        for name, shapes in SHAPES.items()
        for i, shape in enumerate(shapes)
    }
    arrays["mlp_x"] = rng.standard_normal((STEPS, BATCH, 10)).astype("float32")
    arrays["cnn_x"] = rng.standard_normal((STEPS, BATCH, 6, 6, 3)).astype("float32")
    arrays["y"] = rng.integers(0, 3, (STEPS, BATCH))
    return arrays


def build(name: str, arrays: Arrays, kind: type[keras.Model] = keras.Model) -> keras.Model:
    x = inputs = keras.Input(arrays[f"{name}_x"].shape[2:])
    if name == "mlp":
        x = keras.layers.Dense(16, activation="relu")(x)
        x = keras.layers.LayerNormalization()(x)
    else:
        x = keras.layers.Conv2D(4, 3, activation="gelu")(x)
        x = keras.layers.Flatten()(x)
    model = kind(inputs, keras.layers.Dense(3)(x))
    for i, variable in enumerate(model.trainable_variables):
        variable.assign(arrays[f"{name}{i}"])
    return model


def make_optimizer(name: str, **options: object) -> keras.optimizers.Optimizer:
    if name == "mlp":
        return keras.optimizers.SGD(0.1, momentum=0.9, **options)
    return keras.optimizers.AdamW(1e-2, weight_decay=0.01, epsilon=1e-7)


def make_loss(reduction: str = "sum_over_batch_size") -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def join_batches(name: str, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate(arrays[f"{name}_x"]), np.concatenate(arrays["y"])


def fit(
    path: Path, arrays: Arrays, name: str = "mlp", kind: type[keras.Model] = keras.Model, batch: int = BATCH,
    jit: bool = False, **options: object,
) -> None:  # fmt: skip
    model = build(name, arrays, kind)
    model.compile(make_optimizer(name, **options), make_loss(), jit_compile=jit)
    x, y = join_batches(name, arrays)
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0, callbacks=[FitRecorder(str(path))])


class CustomStep(keras.Model):
    """A model with a train_step of its own, as in the guide of Keras."""

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


def mirror() -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())


def fit_mirrored(path: Path, arrays: Arrays, **options: object) -> None:
    with mirror().scope():
        model = build("mlp", arrays)
        model.compile(make_optimizer("mlp", **options), make_loss())
    dataset = tf.data.Dataset.from_tensor_slices(join_batches("mlp", arrays)).batch(BATCH)
    model.fit(dataset, verbose=0, callbacks=[FitRecorder(str(path))])


def loop(
    path: Path, arrays: Arrays, name: str = "mlp", order: int = 1, compiled: bool = True, decay: float = 0.0
) -> None:
    model, optimizer, loss_function = build(name, arrays), make_optimizer(name), make_loss()

    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_function(y, model(x, training=True))
        weights = model.trainable_variables
        gradients = tape.gradient(loss, weights)
        if decay:
            gradients = [gradient + decay * weight for gradient, weight in zip(gradients, weights, strict=True)]
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    step = tf.function(train_step) if compiled else train_step
    recorder = Recorder(str(path), model, optimizer)
    for x, y in zip(arrays[f"{name}_x"], arrays["y"], strict=True):
        with recorder.step():
            step(tf.constant(x[::order]), tf.constant(y[::order]))


def loop_mirrored(path: Path, arrays: Arrays) -> None:
    strategy = mirror()
    with strategy.scope():
        model, optimizer, loss_function = build("mlp", arrays), make_optimizer("mlp"), make_loss("none")

    def train_replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_function(y, model(x, training=True)), global_batch_size=BATCH)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    step = tf.function(lambda x, y: strategy.reduce("SUM", strategy.run(train_replica, (x, y)), axis=None))
    recorder = Recorder(str(path), model, optimizer)
    dataset = tf.data.Dataset.from_tensor_slices(join_batches("mlp", arrays)).batch(BATCH)
    for x, y in strategy.experimental_distribute_dataset(dataset):
        with recorder.step():
            step(x, y)


HALVES: dict[str, Callable[[Path, Arrays], None]] = {
    "fit": fit,
    "fit again": fit,
    "fit, XLA": lambda path, arrays: fit(path, arrays, jit=True),
    "fit, accumulation": lambda path, arrays: fit(path, arrays, batch=BATCH // 2, gradient_accumulation_steps=2),
    "fit, clipped": lambda path, arrays: fit(path, arrays, global_clipnorm=0.2),
    "fit, train_step": lambda path, arrays: fit(path, arrays, kind=CustomStep),
    "fit, cnn": lambda path, arrays: fit(path, arrays, name="cnn"),
    "fit, mirrored": fit_mirrored,
    "fit, mirrored, clipped": lambda path, arrays: fit_mirrored(path, arrays, global_clipnorm=0.2),
    "loop": loop,
    "loop, cnn": lambda path, arrays: loop(path, arrays, name="cnn"),
    "loop, eager": lambda path, arrays: loop(path, arrays, compiled=False),
    "loop, reversed batches": lambda path, arrays: loop(path, arrays, order=-1),
    "loop, decay": lambda path, arrays: loop(path, arrays, decay=0.01),
    "loop, mirrored": loop_mirrored,
}
PAIRS = [
    ("fit", "fit again"), ("fit", "loop"), ("fit", "fit, XLA"), ("fit", "fit, accumulation"),
    ("fit", "fit, train_step"),
    ("fit", "fit, mirrored"), ("loop", "loop, mirrored"), ("loop", "loop, reversed batches"), ("loop, eager", "fit"),
    ("loop, mirrored", "fit, mirrored"), ("fit, cnn", "loop, cnn"), ("fit, cnn", "torch cnn"),
    ("loop, cnn", "torch cnn"),
    ("fit", "torch loop"), ("torch loop", "loop"), ("fit, mirrored", "torch loop"), ("fit", "torch accumulation"),
    ("fit, accumulation", "torch accumulation"), ("torch clipped", "fit, clipped"), ("fit, train_step", "accelerate"),
    ("torch decay", "loop, decay"),
]  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of all records. A process of PyTorch writes its halves beside those of TensorFlow."""
    root, arrays = tmp_path_factory.mktemp("pairs"), draw_arrays()
    np.savez(root / "arrays.npz", **arrays)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "tests.integration.clean_pair_torch", str(root)]
    torch = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        for name, write in HALVES.items():
            keras.utils.clear_session()  # variables have the same names in each half
            write(root / name, arrays)
        errors = torch.communicate(timeout=TORCH_SECONDS)[1]
        assert torch.returncode == 0, errors[-3000:]
        yield root
    finally:
        if torch.poll() is None:
            os.killpg(torch.pid, signal.SIGKILL)
            torch.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_no_difference_is_found(a: str, b: str, directory: Path) -> None:
    diagnosis = diagnose_records(directory / a, directory / b)
    assert [(cause.cause, cause.sentence) for cause in diagnosis.causes] == []
    assert diagnosis.is_equal
    assert diagnosis.headline.startswith("no difference: ")


@pytest.mark.slow
def test_keras_clips_the_gradients_of_each_replica(directory: Path) -> None:
    record = directory / "fit, mirrored, clipped"
    assert json.loads((record / "record.json").read_text())["not_recorded"] == []
    causes = diagnose_records(directory / "fit, clipped", record).causes
    assert [cause.cause for cause in causes] == ["clipped_before_reduction"]
