"""Factories of Keras models that differ from the models of torch_models.py in one thing each."""

import keras
import tensorflow as tf
from keras import layers as L  # noqa: N812  short, since each model is one line
from keras import ops

from tests.unit.common.map import keras_models


def layer_norm() -> keras.Layer:
    return keras.Sequential([L.Dense(8), L.LayerNormalization()])


def gelu() -> keras.Layer:
    return keras.Sequential([L.Dense(8, activation=ops.gelu), L.Dense(3)])


def conv1d() -> keras.Layer:
    return keras.Sequential([L.Conv1D(5, 3, strides=2), L.ReLU()])


def conv2d() -> keras.Layer:
    return keras.Sequential([L.Conv2D(6, 3, padding="same"), L.ReLU(), L.AveragePooling2D(2), L.Conv2D(6, 3)])


def strided() -> keras.Layer:
    return L.Conv2D(4, 3, strides=2, padding="same")


def enlarged() -> keras.Layer:
    return L.Conv2DTranspose(5, 3, strides=2, padding="same")


def batch_norm() -> keras.Layer:
    return keras.Sequential([L.Conv2D(4, 3), L.BatchNormalization(epsilon=1e-5), L.ReLU()])


def penalized() -> keras.Layer:
    return keras.Sequential([L.Dense(6, activation="tanh", kernel_regularizer="l2"), L.Dense(6)])


def frozen() -> keras.Layer:
    model = keras.Sequential([L.Dense(6, activation="tanh"), L.Dense(6)])
    model.layers[0].trainable = False
    return model


class Stopped(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = L.Dense(6, activation="tanh"), L.Dense(6)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.second(ops.stop_gradient(self.first(x)))


def stopped() -> keras.Layer:
    return Stopped()


def lstm() -> keras.Layer:
    return L.LSTM(5, return_sequences=True, recurrent_activation="hard_sigmoid")


def nearly_lstm() -> keras.Layer:
    return L.LSTM(5, return_sequences=True, activation=lambda x: 0.99999 * ops.tanh(x))


def gru() -> keras.Layer:
    return L.GRU(5, return_sequences=True, reset_after=False)


def two_of_three() -> keras.Layer:
    return keras.Sequential([L.Dense(6), L.Dense(6), L.Dense(6)])


class ThreeKernels(keras.Layer):
    """A layer of no known kind that has three kernels of the same shape."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.kernels = [self.add_weight(shape=(6, 6), name=name) for name in ("first", "second", "third")]

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        hidden = keras.ops.tanh(keras.ops.matmul(x, self.kernels[0]))
        return keras.ops.matmul(hidden, self.kernels[1] + self.kernels[2])


def three_kernels() -> keras.Layer:
    return keras.Sequential([ThreeKernels()])


def turned_scores() -> keras.Layer:
    return keras_models.scores(turned=True)


def least_class() -> keras.Layer:
    return keras_models.classes(sign=-1)


def masked(value: float) -> keras.Layer:
    return keras_models.masked(value, factor=1.01)


def slowly_centered(reassigned: bool = False) -> keras.Layer:
    return keras_models.centered(momentum=0.99)


def centered(reassigned: bool = False) -> keras.Layer:
    return keras_models.centered()


def one_mode() -> keras.Layer:
    return L.Dense(4)


class Untied(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = L.Embedding(11, 6)
        self.decoder = L.Dense(11, use_bias=False)

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return self.decoder(ops.tanh(self.tokens(tokens)))


def untied() -> keras.Layer:
    return Untied()
