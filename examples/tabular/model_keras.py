"""A regression model of two inputs: numbers, and a category that is embedded."""

import keras
from keras import layers


def build(width: int = 32) -> keras.Model:
    """Build a model that maps numbers [n, 9] and sex [n], which is 0 or 1, to the progression of the disease [n, 1]."""
    numbers = keras.Input((9,), name="numbers")
    sex = keras.Input((), name="sex", dtype="int32")
    x = layers.concatenate([numbers, layers.Embedding(2, 4)(sex)])
    x = layers.LayerNormalization(epsilon=1e-5)(layers.Dense(width)(x))  # Keras's default is 1e-3
    x = layers.Activation("gelu")(x)
    return keras.Model({"numbers": numbers, "sex": sex}, layers.Dense(1)(x))
