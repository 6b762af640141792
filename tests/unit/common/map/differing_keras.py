"""Keras models for tests of diagnoses: as they should be, or with one difference from differing_torch.py."""

import keras
import tensorflow as tf
from keras import layers as L  # noqa: N812  short, as in keras_models.py
from keras import ops


class Scale(L.Layer):
    """A learned factor of each feature."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.gamma = self.add_weight(shape=shape[-1:], initializer=keras.initializers.Constant(0.1), name="gamma")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x * self.gamma


def _apply_block(x: tf.Tensor, parts: tuple[str, ...]) -> tf.Tensor:
    x = x + L.Dense(8, activation="tanh")(L.LayerNormalization(epsilon=1e-5)(x))
    normalized = L.LayerNormalization(epsilon=1e-5)(x) if "norm" in parts else x
    added = L.Dense(8)(L.Dense(16, activation="gelu")(normalized))
    return x + (Scale()(added) if "scale" in parts else added)


def residual(torch_lacks: str = "", keras_lacks: str = "") -> keras.Layer:
    parts = tuple(part for part in (torch_lacks, keras_lacks, "norm") if part != keras_lacks)
    inputs = keras.Input((6,))
    x = L.Dense(8)(inputs)
    if keras_lacks != "batch_norm":
        x = L.BatchNormalization(epsilon=1e-5)(x)
    x = _apply_block(_apply_block(L.ReLU()(x), parts), ("norm",))
    if "dense" in parts:
        x = L.Dense(8)(x)
    return keras.Model(inputs, L.Dense(3, use_bias="bias" in parts)(L.ReLU()(x)))


class Attention(keras.Model):
    """An attention to the tokens that are not 0, with embeddings of positions."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.tokens, self.positions = L.Embedding(20, 8), L.Embedding(12, 8)
        self.attention, self.head = L.MultiHeadAttention(2, 4), L.Dense(3)
        self.variant = variant

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        positions = ops.arange(tokens.shape[1])
        if self.variant == "reversed":
            positions = ops.flip(positions, 0)
        x = self.tokens(tokens) + self.positions(positions + int(self.variant == "shifted"))[None]
        mask = None if self.variant == "unmasked" else (tokens != 0)[:, None]
        return self.head(ops.mean(x + self.attention(x, x, attention_mask=mask), 1))


def attention(torch_variant: str = "", keras_variant: str = "") -> keras.Layer:
    return Attention(keras_variant)


def two_outputs(lacks: str = "") -> keras.Layer:
    inputs = keras.Input((6,))
    x = L.Dense(8)(inputs)
    if lacks != "keras":
        x = L.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(inputs, [x, L.Dense(3)(x)])
