"""The model of pairs_torch.py in Keras."""

import keras
from keras import layers


def build() -> keras.Model:
    """Return the model with random weights."""
    inputs = {name: keras.Input((size,), name=name) for name, size in (("text", 4), ("image", 6), ("other", 6))}
    encode_text, encode_image = (layers.Dense(8, activation="tanh", name=f"{name}_layer") for name in ("text", "image"))
    projection = layers.Dense(5, use_bias=False, name="projection")
    features = encode_text(inputs["text"]), encode_image(inputs["image"]), encode_image(inputs["other"])
    return keras.Model(inputs, [projection(x) for x in features])
