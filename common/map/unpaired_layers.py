"""Layers of a model, or some of their variables, that have no counterpart in the other model."""

from collections.abc import Collection
from typing import TypedDict

from common.map.description import ModelDescription


class UnpairedLayer(TypedDict):
    """A layer with variables that have no counterpart, as config.json lists it for common.diagnose."""

    path: str
    kind: str  # the name of the layer's class
    variables: list[str]  # the names of those variables
    is_whole: bool  # whether all variables of the layer lack a counterpart


def list_unpaired_layers(description: ModelDescription, unmatched: Collection[str]) -> list[UnpairedLayer]:
    """Return the layers that have some of the `unmatched` variables, in the order of execution.

    A variable that several layers share belongs to the first of them.
    """
    layers: list[UnpairedLayer] = []
    listed: set[str] = set()
    for layer in description.layers:
        names = [name for name in layer.variables.values() if name in unmatched and name not in listed]
        if not names:
            continue
        listed.update(names)
        others = (name for name in layer.variables.values() if name not in names)
        is_whole = all(description.variables[name].is_constant for name in others)
        layers.append({"path": layer.path, "kind": layer.kind, "variables": names, "is_whole": is_whole})
    return layers
