"""The Keras 3 counterpart of keras_two_torch.py: a model that compiles quickly."""

import keras
from keras import layers, ops


def build() -> keras.Model:
    """Return a model that maps numbers [n, 9] and sex [n], which is 0 or 1, to a number [n, 1]."""
    numbers = keras.Input((9,), name="numbers")
    sex = keras.Input((), name="sex", dtype="int32")
    x = layers.concatenate([numbers, ops.cast(sex[:, None], numbers.dtype)])
    x = layers.Dropout(0.1)(layers.Dense(16, activation="tanh")(x))
    return keras.Model({"numbers": numbers, "sex": sex}, layers.Dense(1)(x))
