"""Unique names for the layers and variables of a Keras model.

No process of `common` imports Keras, so the types are those of whichever Keras the model comes from.
"""

from collections.abc import Iterable
from typing import Any

SEED_STATE = "seed_generator_state"  # the name of the variable of a keras.random.SeedGenerator


def make_unique(path: str, taken: Iterable[str]) -> str:
    """Return the path if it is not taken, else path#2, path#3 ... Keras allows several layers of one path."""
    same_count = sum(name.partition("#")[0] == path for name in taken)
    return f"{path}#{same_count + 1}" if same_count else path


def variables_by_path(model: Any) -> dict[str, Any]:  # noqa: ANN401  a keras.Layer, and its variables
    """Return all variables of a model by unique path."""
    variables: dict[str, Any] = {}
    for variable in model.variables:
        variables[make_unique(variable.path, variables)] = variable
    return variables


def layers_by_path(model: Any) -> dict[str, Any]:  # noqa: ANN401  a keras.Layer, and its layers
    """Return all layers of a model by unique path."""
    layers: dict[str, Any] = {}
    for layer in model._flatten_layers():
        layers[make_unique(layer.path or layer.name, layers)] = layer
    return layers
