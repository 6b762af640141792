"""The order of the layers of functional models, by which the variables of two models are paired."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from common.recording.record_format import LayerFacts
from tf_impl.record.model_facts import Layer

NUMBERED = re.compile(r"keras_tensor(?:_(\d+))?$")  # the name of the output of a layer, which Keras 3 numbers


def order_layers(
    layers: Mapping[str, Layer], arrays: Mapping[str, object], facts: Sequence[LayerFacts], names: Sequence[str]
) -> list[LayerFacts]:
    """Return descriptions of layers with those of functional models in the order in which a script computes them.

    Args:
        layers: The layers by path.
        arrays: What they received, by its name in a record.
        facts: Their descriptions, in the order in which a pass entered them.
        names: The names of the model's variables in their order.
    """
    return _order_heads(layers, arrays, _order_branches(layers, facts), names)


def _order_branches(layers: Mapping[str, Layer], facts: Sequence[LayerFacts]) -> list[LayerFacts]:
    """Return the layers with those of functional models in the order in which the script called them.

    Keras calls them by their distance from the outputs, and layers of one distance in any order, such as the skip
    connections of a WaveNet from the last block to the first.

    Args:
        layers: The layers by path.
        facts: Their descriptions, in the order in which the pass entered them.
    """
    ordered = [*facts]
    for model in layers.values():
        ranks = _rank_operations(model) if _is_functional(model) else {}
        owners = {
            id(part): id(member)
            for member in (getattr(model, "layers", []) if ranks else [])
            for part in member._flatten_layers()
        }
        groups: dict[object, list[LayerFacts]] = {}
        for layer in ordered:
            groups.setdefault(owners.get(id(layers[layer["path"]]), layer["path"]), []).append(layer)
        members = iter(sorted((key for key in groups if key in ranks), key=lambda key: ranks[key]))
        ordered = [layer for key in groups for layer in groups[next(members) if key in ranks else key]]
    return ordered


def _is_functional(model: Layer) -> bool:
    """Check whether a layer is a functional model, also one of a script's own class that has no `call` of its own."""
    owner = next((kind.__name__ for kind in type(model).__mro__ if "call" in vars(kind)), "")
    return owner == "Functional" and hasattr(model, "_nodes_by_depth")


def _rank_operations(model: Layer) -> Mapping[object, int | tuple[int, int]]:
    """Return the ranks of the operations of a functional model in the order in which its script called them."""
    return _rank_by_outputs(model) or _rank_by_distance(model)


def _rank_by_outputs(model: Layer) -> dict[object, int]:
    """Return the numbers of the outputs of operations, by identity. Keras 2 has no numbers."""
    ranks: dict[object, int] = {}
    for node in (node for depth in model._nodes_by_depth.values() for node in depth):
        names = [tensor.name for tensor in tf.nest.flatten(node.outputs)]
        numbers = [int(match[1] or 0) for name in names if (match := NUMBERED.match(name))]
        operation = getattr(node, "operation", None)
        if not numbers and not getattr(node, "is_input", False):
            return {}
        if numbers:
            ranks[id(operation)] = min(numbers[0], ranks.get(id(operation), numbers[0]))
    return ranks


def _rank_by_distance(model: Layer) -> dict[object, tuple[int, int]]:
    """Return (-depth, level) of the operations of a functional model, by identity.

    The depth is the largest number of operations to an output, and the level the largest number from an input.
    """
    ranks: dict[object, tuple[int, int]] = {}
    levels: dict[int, int] = {}
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            inputs = tf.nest.flatten(getattr(node, "input_tensors", []))
            parents = [tensor._keras_history for tensor in inputs if hasattr(tensor, "_keras_history")]
            known = [levels.get(id(operation._inbound_nodes[index]), 0) for operation, index, _ in parents]
            levels[id(node)] = 1 + max(known, default=0)
            operation = getattr(node, "operation", None) or node.layer
            ranks.setdefault(id(operation), (-depth, levels[id(node)]))
    return ranks


def _order_heads(
    layers: Mapping[str, Layer], arrays: Mapping[str, object], facts: Sequence[LayerFacts], names: Sequence[str]
) -> list[LayerFacts]:
    """Return the layers in their order, but sort layers of a functional model of Keras 2 that receive the same tensor.

    Keras calls such layers in any order, such as the second of two heads before the first one. They are sorted by the
    order of their variables.

    Args:
        layers: The layers by path.
        arrays: What they received, by its name in a record.
        facts: Their descriptions in order.
        names: The names of the model's variables in their order.
    """
    graphs = [x for x in layers.values() if _is_functional(x) and not _rank_by_outputs(x)]
    members = {id(layer) for graph in graphs for layer in graph.layers}
    groups: dict[object, list[LayerFacts]] = {}
    for layer in facts:
        received = arrays.get(f"layer/{layer['path']}/input")
        is_head = received is not None and layer["variables"] and id(layers[layer["path"]]) in members
        groups.setdefault(id(received) if is_head else layer["path"], []).append(layer)
    ordered = {
        key: iter(sorted(group, key=lambda layer: min(map(names.index, layer["variables"].values()), default=0)))
        for key, group in groups.items()
    }
    keys = {layer["path"]: key for key, group in groups.items() for layer in group}
    return [next(ordered[keys[layer["path"]]]) for layer in facts]
