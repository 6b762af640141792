"""Keras models with layers that compute several sublayers at once; composite_torch.py has their counterparts."""

import keras
import tensorflow as tf
from keras import layers as L  # noqa: N812  short, as in keras_models.py
from keras import ops


class Attention(keras.Model):
    """A Dense layer, and an attention of its features in one of several variants."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.first, self.attention, self.variant = L.Dense(8), L.MultiHeadAttention(2, 4), variant

    def call(self, x: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        x = self.first(x)
        if self.variant == "padded":
            return self.attention(x, x, attention_mask=(ops.arange(x.shape[1]) < 3)[None, None])
        if self.variant == "scores":
            return self.attention(x, x, return_attention_scores=True)
        if self.variant == "cross":
            return self.attention(value=ops.tanh(x), query=x)
        return self.attention(x, x, use_causal_mask=self.variant == "causal")


class OwnAttention(keras.Model):
    """The same of four Dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = L.Dense(8, name="first")
        self.query, self.key, self.value, self.out = (
            L.Dense(8, name=name) for name in ("query", "key", "value", "output")
        )

    def call(self, x: tf.Tensor) -> tf.Tensor:
        x = self.first(x)
        key, value, query = (
            ops.reshape(layer(x), (*x.shape[:2], 2, 4)) for layer in (self.key, self.value, self.query)
        )
        return self.out(ops.reshape(ops.dot_product_attention(query, key, value), x.shape))


class Positions(keras.Layer):
    """An own layer that returns its parameter for every example."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return ops.broadcast_to(self.table, x.shape)


def attention(variant: str = "plain") -> keras.Layer:
    return Attention(variant)


def own_attention() -> keras.Layer:
    return OwnAttention()


def grouped_attention() -> keras.Layer:
    x = keras.Input((5, 8))
    return keras.Model(x, L.GroupQueryAttention(2, 4, 2)(x, x))


def decoder() -> keras.Layer:
    x, memory = keras.Input((5, 8), name="tgt"), keras.Input((7, 8), name="memory")
    attended = L.LayerNormalization(epsilon=1e-5)(x + L.MultiHeadAttention(2, 4)(x, x))
    attended = L.LayerNormalization(epsilon=1e-5)(attended + L.MultiHeadAttention(2, 4)(attended, memory))
    inner = L.Dense(8)(L.Dense(16, activation="relu")(attended))
    return keras.Model({"tgt": x, "memory": memory}, L.LayerNormalization(epsilon=1e-5)(attended + inner))


def _recur(*layers: keras.Layer) -> keras.Layer:
    return keras.Sequential([keras.Input((5, 6)), L.Dense(6), *layers])


def stacked() -> keras.Layer:
    return _recur(*(L.LSTM(6, return_sequences=True) for _ in range(2)))


def stacked_bidirectional() -> keras.Layer:
    return _recur(*(L.Bidirectional(L.LSTM(3, return_sequences=True)) for _ in range(2)))


def backwards() -> keras.Layer:
    return _recur(L.LSTM(6, return_sequences=True, go_backwards=True))


def separable() -> keras.Layer:
    return keras.Sequential([keras.Input((7, 8, 4)), L.SeparableConv2D(4, 3)])


def positions() -> keras.Layer:
    inputs = keras.Input((5, 8), batch_size=4)
    x = L.Dense(8)(inputs)
    return keras.Model(inputs, L.Dense(2)(x + Positions()(x)))


def masked_states() -> keras.Layer:
    return keras.Sequential(
        [keras.Input((5,), dtype="int32"), L.Embedding(11, 6, mask_zero=True), L.LSTM(6), L.Dense(2)]
    )
