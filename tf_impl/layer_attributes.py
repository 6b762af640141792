"""The kind and the attributes of Keras's layers, as common.map compares them."""

import keras

from common.map.keras_attributes import get_keras_attributes, get_keras_kind


def get_layer_kind(layer: keras.Layer) -> str:
    """Return the name of the known Keras class that a layer is or derives from; otherwise the layer's own class."""
    return get_keras_kind(layer)


def get_layer_attributes(layer: keras.Layer) -> dict[str, object]:
    """Return the attributes that common.map compares or names in errors, under the names of common.map."""
    return get_keras_attributes(layer)
