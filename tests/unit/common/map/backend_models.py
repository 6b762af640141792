"""Keras models that both backends compute, and some that training refuses."""

import keras
from keras import layers


def images() -> keras.Model:
    """Build convolutions with BatchNorm and kinds of noise."""
    x = keras.Input((8, 8, 3))
    y = layers.BatchNormalization()(layers.Conv2D(6, 3, strides=2, padding="same", use_bias=False)(x))
    y = layers.SpatialDropout2D(0.2)(layers.Activation("gelu")(y))
    y = layers.BatchNormalization(scale=False)(layers.SeparableConv2D(4, 3)(y))
    y = layers.GaussianNoise(0.1)(layers.GaussianDropout(0.1)(y))
    y = layers.Dropout(0.5)(layers.Dense(5, activation="selu")(layers.Flatten()(y)))
    return keras.Model(x, layers.Dense(3)(y))


def tokens() -> keras.Model:
    """Build recurrent layers and an attention."""
    x = keras.Input((5,), dtype="int32")
    y = layers.Embedding(11, 8)(x)
    y = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(y)
    y = layers.LayerNormalization()(y + layers.MultiHeadAttention(2, 4, dropout=0.1)(y, y))
    return keras.Model(x, layers.Dense(2)(layers.GRU(4, go_backwards=True)(y)))


def penalized() -> keras.Model:
    """Build a layer with a regularizer behind a frozen one, whose regularizer and constraint Keras ignores, too."""
    x = keras.Input((6,))
    frozen = layers.Dense(6, kernel_regularizer="l2", kernel_constraint="non_neg", trainable=False, name="frozen")
    return keras.Model(x, layers.Dense(2, kernel_regularizer="l2", name="dense")(frozen(x)))
