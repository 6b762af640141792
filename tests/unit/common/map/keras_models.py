"""Factories of Keras models; torch_models.py has one of the same name for each."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers as L  # noqa: N812  short, since each model is one line
from keras import ops


def linear(bias: bool = True) -> keras.Layer:
    return L.Dense(4, use_bias=bias)


def square() -> keras.Layer:
    return keras.Sequential([L.Dense(6, activation="tanh"), L.Dense(6)])


def gelu(approximate: str = "none") -> keras.Layer:
    def activation(x: tf.Tensor) -> tf.Tensor:
        return keras.activations.gelu(x, approximate=approximate == "tanh")

    return keras.Sequential([L.Dense(8, activation=activation), L.Dense(3)])


def activations() -> keras.Layer:
    return keras.Sequential(
        [L.Dense(8), L.LeakyReLU(0.3), L.Dense(8), L.ELU(0.7), L.Dense(8, activation="silu"), L.Dense(2)]
    )


def conv1d() -> keras.Layer:
    return L.Conv1D(5, 3, strides=2)


def conv2d(padding: int = 1) -> keras.Layer:
    return keras.Sequential([L.Conv2D(6, 3, padding="same", activation="relu"), L.MaxPooling2D(2), L.Conv2D(6, 3)])


def conv3d() -> keras.Layer:
    return L.Conv3D(4, (1, 2, 2))


def grouped() -> keras.Layer:
    return L.Conv2D(8, 3, groups=2)


def depthwise() -> keras.Layer:
    return L.DepthwiseConv2D(3, depth_multiplier=2)


def depthwise1d() -> keras.Layer:
    return L.DepthwiseConv1D(3, depth_multiplier=2)


def separable() -> keras.Layer:
    return L.SeparableConv2D(5, 3, depth_multiplier=2)


def transposed1d() -> keras.Layer:
    return L.Conv1DTranspose(5, 2, strides=2)


def transposed2d() -> keras.Layer:
    return L.Conv2DTranspose(5, 3)


def transposed3d() -> keras.Layer:
    return L.Conv3DTranspose(4, 2, strides=2)


def embedding() -> keras.Layer:
    return keras.Sequential([L.Embedding(11, 6), L.Dense(3)])


def layer_norm(epsilon: float = 1e-5) -> keras.Layer:
    return keras.Sequential([L.Dense(8), L.LayerNormalization(epsilon=epsilon)])


def rms_norm() -> keras.Layer:
    return L.RMSNormalization(epsilon=1e-6)


def batch_norm(momentum: float = 0.1) -> keras.Layer:
    return keras.Sequential([L.Conv2D(4, 3), L.BatchNormalization(epsilon=1e-5, momentum=1 - momentum), L.ReLU()])


def batch_norm_1d() -> keras.Layer:
    return keras.Sequential([L.Dense(8), L.BatchNormalization(epsilon=1e-5, momentum=0.9), L.Dense(2)])


def group_norm() -> keras.Layer:
    return L.GroupNormalization(2, epsilon=1e-3)


def instance_norm() -> keras.Layer:
    return L.GroupNormalization(-1, epsilon=1e-3)


def prelu() -> keras.Layer:
    return L.PReLU(shared_axes=[1, 2])


def lstm() -> keras.Layer:
    return L.LSTM(5, return_sequences=True)


def stacked_lstm() -> keras.Layer:
    return keras.Sequential([L.LSTM(6, return_sequences=True, dropout=0.1) for _ in range(2)])


def bidirectional_lstm() -> keras.Layer:
    return keras.Sequential([L.Bidirectional(L.LSTM(5, return_sequences=True)) for _ in range(2)])


def gru() -> keras.Layer:
    return L.GRU(5, return_sequences=True)


def bidirectional_gru() -> keras.Layer:
    return L.Bidirectional(L.GRU(6, return_sequences=True))


def rnn() -> keras.Layer:
    return L.SimpleRNN(5, return_sequences=True)


def last_step() -> keras.Layer:
    return keras.Sequential([L.LSTM(5), L.Dense(2)])


def cells() -> keras.Layer:
    return L.RNN(L.GRUCell(5))


class SelfAttention(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.attention = L.MultiHeadAttention(2, 4, dropout=0.1)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.attention(x, x, training=training)


def self_attention() -> keras.Layer:
    return SelfAttention()


class CrossAttention(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.attention = L.MultiHeadAttention(2, 4)

    def call(self, query: tf.Tensor, memory: tf.Tensor) -> tf.Tensor:
        return self.attention(query, memory)


def cross_attention() -> keras.Layer:
    return CrossAttention()


class OwnAttention(keras.Model):
    """`ops.dot_product_attention` between four layers, called in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (
            L.EinsumDense("btc,chd->bthd", (None, 2, 4), bias_axes="hd", name=name)
            for name in ("query", "key", "value")
        )
        self.attention_output = L.Dense(8, name="attention_output")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        mixed = ops.dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.attention_output(ops.reshape(mixed, (*x.shape[:2], 8)))


def own_attention() -> keras.Layer:
    return OwnAttention()


def fused_attention() -> keras.Layer:
    return SelfAttention()


class FusedDense(keras.Model):
    """One Dense for query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = L.Dense(24), L.Dense(8)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        query, key, value = ops.split(ops.reshape(self.qkv(x), (*x.shape[:2], 6, 4)), 3, 2)
        return self.proj(ops.reshape(ops.dot_product_attention(query, key, value), x.shape))


def fused_dense() -> keras.Layer:
    return FusedDense()


def transformer() -> keras.Layer:
    x = inputs = keras.Input((None, 8))
    for _ in range(2):
        attended = L.Dropout(0.1)(L.MultiHeadAttention(2, 4, dropout=0.1)(x, x))
        x = L.LayerNormalization(epsilon=1e-5)(x + attended)
        inner = L.Dense(8)(L.Dropout(0.1)(L.Dense(16, activation="gelu")(x)))
        x = L.LayerNormalization(epsilon=1e-5)(x + L.Dropout(0.1)(inner))
    return keras.Model(inputs, x)


class Tied(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = L.Embedding(11, 6)
        self.bias = self.add_weight(shape=(11,), name="bias")

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return ops.tanh(self.tokens(tokens)) @ ops.transpose(self.tokens.embeddings) + self.bias


def tied() -> keras.Layer:
    return Tied()


class Plain(keras.Layer):
    def build(self, shape: tuple[int, ...]) -> None:
        self.scale = self.add_weight(shape=(6,), name="scale")
        self.shift = self.add_weight(shape=(1, 6), name="shift")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x * self.scale + self.shift + np.sin(np.linspace(0, 0.7, 6))


def plain() -> keras.Layer:
    return Plain()


def flattened(classes: int = 3) -> keras.Layer:
    norm = L.BatchNormalization(epsilon=1e-5, momentum=0.9)
    return keras.Sequential([L.Conv2D(4, 3, activation="relu"), L.Flatten(), norm, L.Dropout(0.5), L.Dense(classes)])


class Cube(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = L.Conv2D(6, 3), L.Dense(2)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        x = tf.nn.relu(self.conv(x))
        return self.head(ops.hard_silu(ops.reshape(x, (ops.shape(x)[0], -1))))


def cube() -> keras.Layer:
    return Cube()


def flattened_tokens() -> keras.Layer:
    return keras.Sequential([L.Embedding(11, 5), L.Flatten(), L.Dense(2)])


class Residual(keras.Model):
    """As PyTorch's, and the shortcut is computed first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.shortcut = (
            L.Conv2D(3, 3, padding="same", name=name) for name in ("conv1", "conv2", "shortcut")
        )
        self.norm1, self.norm2 = (L.BatchNormalization(epsilon=1e-5, momentum=0.9) for _ in range(2))
        self.head = L.Dense(2)

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        shortcut = self.shortcut(images)
        x = tf.nn.relu(self.norm1(self.conv1(images), training=training))
        x = tf.nn.relu(self.norm2(self.conv2(x), training=training) + shortcut)
        return self.head(ops.mean(x, (1, 2)))


def residual() -> keras.Layer:
    return Residual()


def two_inputs() -> keras.Layer:
    tokens, numbers = keras.Input((4,), dtype="int32", name="tokens"), keras.Input((3,), name="numbers")
    x = L.Add()([L.GlobalAveragePooling1D()(L.Embedding(9, 4)(tokens)), L.Dense(4)(numbers)])
    x = L.Dropout(0.5)(x)
    return keras.Model({"tokens": tokens, "numbers": numbers}, {"logits": L.Dense(2)(x), "hidden": x})


class Repeated(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer = L.Dense(6)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.layer(ops.tanh(self.layer(x)))


def repeated() -> keras.Layer:
    return Repeated()


class Masked(keras.Model):
    def __init__(self, value: float, factor: float) -> None:
        super().__init__()
        self.layer, self.value, self.factor = L.Dense(6), value, factor

    def call(self, x: tf.Tensor) -> tf.Tensor:
        x = self.layer(x)
        return tf.where(tf.range(6) >= 2, tf.constant(self.value, x.dtype), x * self.factor)


def masked(value: float, factor: float = 1) -> keras.Layer:
    return Masked(value, factor)


class Scores(keras.Model):
    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.query, self.key = L.Dense(4, name="query"), L.Dense(4, name="key")
        self.turned = turned

    def call(self, x: tf.Tensor) -> tf.Tensor:
        scores = tf.matmul(self.query(x), self.key(x), transpose_b=True)
        return tf.linalg.matrix_transpose(scores) if self.turned else scores


def scores(turned: bool = False) -> keras.Layer:
    return Scores(turned)


class Classes(keras.Model):
    def __init__(self, sign: int) -> None:
        super().__init__()
        self.layer, self.sign = L.Dense(4), sign

    def call(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = self.layer(x)
        return logits, tf.argmax(self.sign * logits, -1)


def classes(sign: int = 1) -> keras.Layer:
    return Classes(sign)


def no_parameters() -> keras.Layer:
    return L.Activation("tanh")


def all_frozen() -> keras.Layer:
    return L.Dense(4, trainable=False)


class Centered(keras.Model):
    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.layer, self.momentum = L.Dense(4), momentum
        self.center = self.add_weight(shape=(4,), name="center", trainable=False, initializer="zeros")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        x = self.layer(x)
        if training:
            self.center.assign(self.momentum * self.center + (1 - self.momentum) * tf.reduce_mean(x, 0))
        return x


def centered(momentum: float = 0.9) -> keras.Layer:
    return Centered(momentum)


class TwoModes(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer = L.Dense(4)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        x = self.layer(x)
        return (x, tf.tanh(x)) if training else x


def two_modes() -> keras.Layer:
    return TwoModes()


class NormInEvaluation(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = L.Dense(4), L.BatchNormalization(epsilon=1e-5, momentum=0.9)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.layer(x) if training else self.norm(self.layer(x), training=False)


def norm_in_evaluation() -> keras.Layer:
    return NormInEvaluation()


def upsampled() -> keras.Layer:
    return keras.Sequential([L.Conv2D(2, 1), L.UpSampling2D((2, 3), interpolation="bilinear"), L.Conv2D(2, 1)])


def normed_images() -> keras.Layer:
    first, second = (L.LayerNormalization(axis=[1, 2, 3], epsilon=1e-5) for _ in range(2))
    return keras.Sequential([L.Conv2D(8, 1), first, L.Conv2D(2, 3), second, L.Conv2D(4, 1)])


def normed_tokens() -> keras.Layer:
    return keras.Sequential([L.Dense(4), L.LayerNormalization(axis=[1, 2], epsilon=1e-5)])


def enlarged() -> keras.Layer:
    return keras.Sequential([L.Conv2DTranspose(5, 3, strides=2), L.Cropping2D(((1, 0), (1, 0)))])


def _convolve(x: tf.Tensor, outputs: int, size: int, dilation: int = 1, padded: bool = False) -> tf.Tensor:
    if padded:
        x = L.ZeroPadding2D(dilation * (size // 2))(x)
    padding = "valid" if padded else "same"
    x = L.Conv2D(outputs, size, padding=padding, dilation_rate=dilation, use_bias=False)(x)
    return L.ReLU()(L.BatchNormalization(epsilon=1e-5, momentum=0.9)(x))


def branches(padded: bool = False) -> keras.Layer:
    """Build the branches in another order than PyTorch's. padded: whether layers of their own pad the convolutions."""
    inputs = keras.Input((8, 8, 3))
    x = _convolve(inputs, 8, 3)
    pooled = L.UpSampling2D(8)(_convolve(L.GlobalAveragePooling2D(keepdims=True)(x), 6, 1))
    dilated = [_convolve(x, 6, 3, dilation, padded) for dilation in (3, 2, 1)]
    chain = _convolve(_convolve(x, 6, 1), 6, 3, padded=padded)
    joined = L.Concatenate()([_convolve(x, 6, 1), *reversed(dilated), chain, pooled])
    return keras.Model(inputs, L.Conv2D(2, 1)(joined))
