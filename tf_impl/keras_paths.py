"""Unique names for the layers and variables of a Keras model."""

from collections.abc import Iterable

import keras


def make_unique(path: str, taken: Iterable[str]) -> str:
    """Return the path if it is not taken, else path#2, path#3 ... Keras allows several layers of one path."""
    same_count = sum(name.partition("#")[0] == path for name in taken)
    return f"{path}#{same_count + 1}" if same_count else path


def variables_by_path(model: keras.Layer) -> dict[str, keras.Variable]:
    """Return all variables of a model by unique path."""
    variables: dict[str, keras.Variable] = {}
    for variable in model.variables:
        variables[make_unique(variable.path, variables)] = variable
    return variables


def layers_by_path(model: keras.Layer) -> dict[str, keras.Layer]:
    """Return all layers of a model by unique path."""
    layers: dict[str, keras.Layer] = {}
    for layer in model._flatten_layers():
        layers[make_unique(layer.path or layer.name, layers)] = layer
    return layers
