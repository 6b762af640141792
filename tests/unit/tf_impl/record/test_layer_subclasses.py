"""Layers of two scripts whose classes compute another kernel than their own: the operations show what differs."""

from pathlib import Path

import keras
import pytest
import tensorflow as tf
import torch
from torch.nn import functional

from common.diagnose.findings import Cause
from common.diagnose.recorded.walk import diagnose_records
from tf_impl.record import Recorder
from torch_impl.record import Recorder as TorchRecorder


class CenteredConv(torch.nn.Conv2d):
    """A convolution whose kernel has the mean 0 for each output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class KerasCenteredConv(keras.layers.Conv2D):
    """The same in Keras, if the axes are those of the window and the inputs."""

    axes: tuple[int, ...] = (0, 1, 2)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        kernel = tf.convert_to_tensor(self.kernel)
        kernel = kernel - tf.reduce_mean(kernel, self.axes, keepdims=True)
        return tf.nn.bias_add(tf.nn.conv2d(x, kernel, self.strides, "SAME"), self.bias)


def list_causes(directory: Path, axes: tuple[int, ...], stride: int, size: int) -> list[Cause]:
    """Train one step of both scripts, of which Keras's follows, and return the causes."""
    torch.set_default_dtype(torch.float32)  # a float64 model of another test may have changed it
    torch.manual_seed(0)
    count = -(-size // stride)
    convolution = CenteredConv(2, 5, 3, stride=stride, padding=1)
    model = torch.nn.Sequential(convolution, torch.nn.Flatten(), torch.nn.Linear(5 * count**2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    TorchRecorder(str(directory / "a"), model, optimizer, steps=1)
    functional.mse_loss(model(torch.randn(8, 2, size, size)), torch.randn(8, 1)).backward()
    optimizer.step()

    keras.utils.clear_session()
    layer = KerasCenteredConv(5, 3, stride, padding="same")
    layer.axes = axes
    layers = [keras.layers.Permute((3, 1, 2)), keras.layers.Flatten(), keras.layers.Dense(1)]
    port = keras.Sequential([keras.Input((size, size, 2)), layer, *layers])
    update = keras.optimizers.SGD(0.1)
    recorder = Recorder(str(directory / "b"), port, update, steps=1, follow=str(directory / "a"))
    for x, y in recorder.batches([(tf.random.normal((8, size, size, 2)), tf.random.normal((8, 1)))]):
        with recorder.step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.mean_squared_error(y, port(x)))
            weights = port.trainable_variables
            update.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))
    return diagnose_records(directory / "a", directory / "b").causes


@pytest.mark.parametrize(("stride", "size"), [(1, 6), (2, 7)])
def test_equal_paddings_are_not_blamed_for_another_kernel(stride: int, size: int, tmp_path: Path) -> None:
    assert list_causes(tmp_path / "good", (0, 1, 2), stride, size) == []
    (cause,) = list_causes(tmp_path / "bad", (1, 2, 3), stride, size)
    assert (cause.stage, cause.cause) == ("activations", "operation")
    assert "A computes mean([1, 2, 3], keepdim=True)" in cause.sentence
    assert "B Mean(keep_dims=True, axis=[1, 2, 3])" in cause.sentence


def test_another_padding_is_not_the_only_cause_of_a_layer_of_the_script(tmp_path: Path) -> None:
    causes = list_causes(tmp_path, (1, 2, 3), 2, 6)
    assert [cause.cause for cause in causes] == ["operation", "padding"]
