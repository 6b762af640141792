"""The perceptron in Keras. The spec in mlp.py fixes the names and shapes of its parameters."""

import keras
from keras.layers import Dense, Dropout, Flatten

from common.models.initial_weights import InitialCheckpoint
from tf_impl.models.layout import NamedParameter

from .mlp import get_parameter_shapes


def build(initial: InitialCheckpoint) -> keras.Model:
    """Build the model, without the initial weights. It takes `images` by name, and returns logits [n, classes]."""
    hf_config = initial.hf_config
    images = keras.Input(hf_config["image_shape"], name="images")
    x = Dense(hf_config["hidden_size"], activation="relu", name="fc1")(Flatten()(images))
    x = Dense(len(hf_config["id2label"]), name="fc2")(Dropout(hf_config["dropout"])(x))
    model = keras.Model({"images": images}, x)
    model.named_parameters = []
    for name, shape in get_parameter_shapes(hf_config).items():
        layer, kind = name.split(".")
        variable = getattr(model.get_layer(layer), {"weight": "kernel", "bias": "bias"}[kind])
        kernel = shape if kind == "weight" else None  # Keras holds a kernel transposed
        model.named_parameters.append(NamedParameter(name, variable, shape, kernel))
    return model
