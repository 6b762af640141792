"""The model of tagger_torch.py in Keras, with the classes in the last axis."""

import keras
from keras import layers

from tests.parity.tagger_data import TOKENS


def build() -> keras.Model:
    x = keras.Input((TOKENS, 6), name="x")
    hidden = layers.Conv1D(16, 3, padding="same", activation="tanh", name="hidden")(x)
    auxiliary = layers.Dense(2, name="auxiliary")(layers.GlobalAveragePooling1D()(hidden))
    return keras.Model(x, {"logits": layers.Conv1D(3, 1, name="tags")(hidden), "auxiliary": auxiliary})
