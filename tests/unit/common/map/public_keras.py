"""Keras models in the styles of public repositories; public_torch.py has one of the same name for each."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers as L  # noqa: N812  short, because the models are


def tagger() -> keras.Layer:
    return keras.Sequential(
        [
            L.Dense(6, activation="tanh"),
            L.TimeDistributed(L.Dense(6, activation="relu")),
            L.Lambda(lambda x: keras.ops.sum(x, axis=1)),
            L.Dense(6),
        ]
    )


def generator() -> keras.Layer:
    return keras.Sequential(
        [
            L.Dense(60),
            L.BatchNormalization(momentum=0.9, epsilon=1e-5),
            L.ReLU(),
            L.Reshape((3, 4, 5)),
            L.Conv2D(2, 3),
        ]
    )


class Stacks(keras.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [L.Dense(6, activation="tanh") for _ in range(3)]

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        for block in self.blocks:
            x = L.Subtract()([x, block(x)])
        return x


def stacks() -> keras.Layer:
    return Stacks()


def unregistered(kind: str) -> keras.Layer:
    return keras.Sequential([L.Dense(6), L.Dense(2)])


def branches() -> keras.Layer:
    inputs = x = keras.Input((6,))
    forecasts = []
    for number in range(2):
        body = L.Dense(5, activation="relu")(x)
        forecasts.append(L.Activation("tanh")(L.Dense(6, name=f"{number}_stack_theta_f")(body)))
        x = L.Subtract()([x, L.Lambda(tf.sin)(L.Dense(6, name=f"{number}_stack_theta_b")(body))])
    return keras.Model(inputs, L.Add()([*forecasts, x]))


class Interaction(keras.Layer):
    def build(self, shape: tuple[int, ...]) -> None:
        self.filters = self.add_weight(name="filter0", shape=(1, 5, 4))
        self.bias = self.add_weight(name="bias0", shape=(4,))
        self.scale = self.add_weight(name="scale", shape=(6,))
        self.kernel = self.add_weight(name="query", shape=(6, 6))
        self.shift = self.add_weight(name="query_shift", shape=(6,))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        convolved = tf.nn.conv1d(tf.transpose(x, (0, 2, 1)), self.filters, 1, "VALID") + self.bias
        return tf.reduce_sum(tf.nn.relu(convolved), 2) * self.scale + x[:, 0] @ self.kernel + self.shift


def interaction() -> keras.Layer:
    return Interaction()


class WeightNorm(L.Wrapper):
    def build(self, shape: tuple[int, ...]) -> None:
        self.layer.build(shape)
        self.g = self.add_weight(name="g", shape=self.layer.kernel.shape[-1:], initializer="ones")
        self.v = self.layer.kernel

    def call(self, x: tf.Tensor) -> tf.Tensor:
        kernel = self.v / tf.sqrt(tf.reduce_sum(self.v**2, (0, 1))) * self.g
        return tf.nn.conv1d(x, kernel, 1, "VALID") + self.layer.bias

    def compute_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.layer.compute_output_shape(shape)


def weight_norm(style: str) -> keras.Layer:
    assert style in {"hooks", "parametrizations"}
    layers = [WeightNorm(L.Conv1D(4, 3)), L.ReLU(), WeightNorm(L.Conv1D(4, 3)), L.Flatten(), L.Dense(2)]
    return keras.Sequential(layers)


def text_network() -> keras.Layer:
    x = keras.Input((9, 6))
    return keras.Model(
        x, L.Concatenate()([L.GlobalMaxPooling1D()(L.Conv1D(5, size, activation="relu")(x)) for size in (2, 3)])
    )


class Sampling(keras.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1)

    def call(self, mean: tf.Tensor) -> tf.Tensor:
        return mean + keras.random.normal(tf.shape(mean), seed=self.seed_generator)


def sampler() -> keras.Layer:
    return keras.Sequential([L.Dense(3), Sampling(), L.Dense(2)])


class Positions(keras.Layer):
    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + np.sin(np.arange(6) / 7)


def positions() -> keras.Layer:
    return keras.Sequential([Positions(), L.Dense(2)])


class Constants(keras.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.identity = L.Dense(6), tf.eye(6)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        rate = tf.constant([0.1] * 6, None)
        return self.head(x @ self.identity) * rate + tf.range(0.0, 6.0)


def constants() -> keras.Layer:
    return Constants()


def shortcut() -> keras.Layer:
    images = keras.Input((8, 8, 4))
    x = L.Conv2D(4, 3, padding="same")(images)
    pooled = L.MaxPooling2D()(L.SeparableConv2D(4, 3, padding="same")(L.ReLU()(x)))
    head = L.Conv2D(3, 1)(L.add([pooled, L.Conv2D(4, 1, strides=2)(x)]))
    return keras.Model(images, L.GlobalAveragePooling2D()(head))


class Fourier(keras.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.head = L.Dense(6)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        spectrum = tf.signal.fft2d(tf.cast(x, tf.complex64)) * tf.constant(1, tf.complex64)
        return self.head(x + tf.math.real(spectrum))


def fourier() -> keras.Layer:
    return Fourier()


class LayerScale(keras.Layer):
    def build(self, shape: tuple[int, ...]) -> None:
        self.gamma = self.add_weight(shape=(shape[-1],), initializer=keras.initializers.Constant(0.1))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x * self.gamma


def scaled_branches() -> keras.Layer:
    x = images = keras.Input((8, 8, 4))
    for _ in range(3):
        x = L.add([x, LayerScale()(L.Conv2D(4, 3, padding="same", activation="relu")(x))])
    return keras.Model(images, x)


def likelihoods() -> keras.Layer:
    return keras.Sequential([L.Dense(5, activation="tanh"), L.Dense(3), L.Softmax()])
