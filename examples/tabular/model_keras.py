"""Numbers and a category to one number."""

import keras
from keras import layers


def build(width: int = 32) -> keras.Model:
    """numbers [n, 9] and sex [n] to the progression of the disease [n, 1]."""
    numbers = keras.Input((9,), name="numbers")
    sex = keras.Input((), name="sex", dtype="int32")
    x = layers.concatenate([numbers, layers.Embedding(2, 4)(sex)])
    x = layers.LayerNormalization(epsilon=1e-5)(layers.Dense(width)(x))  # Keras's default is 1e-3
    x = layers.Activation("gelu")(x)
    return keras.Model({"numbers": numbers, "sex": sex}, layers.Dense(1)(x))
