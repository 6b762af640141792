"""The model of heads_torch.py in Keras, which returns a list."""

import keras
from keras import layers


def build() -> keras.Model:
    """Return the model with random weights."""
    images = keras.Input((6, 6, 2), name="images")
    features = layers.Conv2D(5, 3, padding="same", activation="tanh", name="body")(images)
    pooled = layers.GlobalAveragePooling2D()(features)
    outputs = [layers.Dense(size, name=name)(pooled) for name, size in (("group", 3), ("age", 1), ("auxiliary", 4))]
    return keras.Model(images, [layers.Conv2D(2, 1, name="mask")(features), *outputs])
