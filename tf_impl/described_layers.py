"""Descriptions of the layers that a forward pass enters, and of the variables, for common.map."""

from collections.abc import Mapping
from dataclasses import replace

import keras

from common.map.connections import find_connections
from common.map.description import LayerDescription, VariableDescription
from common.map.keras_attributes import list_own_variables
from tf_impl.forward_trace import ForwardTrace
from tf_impl.layer_attributes import get_layer_attributes, get_layer_kind


def describe_layers(trace: ForwardTrace, names_by_id: Mapping[int, str]) -> list[LayerDescription]:
    """Describe the layers that own variables, in the order in which a pass entered them.

    Args:
        trace: The trace of the pass.
        names_by_id: The names of the variables by their identity.
    """
    layers = []
    for path, layer in trace.entered.items():
        roles = {
            variable.name: names_by_id[id(variable)]
            for variable in list_own_variables(layer)
            if id(variable) in names_by_id
        }
        if roles:
            kind, attributes = get_layer_kind(layer), get_layer_attributes(layer)
            shape, composite = trace.unflattened_shapes.get(path), trace.composites.get(path)
            reshaped = trace.reshaped_shapes.get(path)
            layers.append(LayerDescription(kind, path, attributes, roles, shape, composite, reshaped_shape=reshaped))
    convolutions = {layer.path: -1 for layer in layers if "Conv" in layer.kind}
    connections = find_connections({layer.path for layer in layers}, trace.calls, convolutions)
    return [replace(layer, connection=connections.get(layer.path)) for layer in layers]


def describe_variable(name: str, variable: keras.Variable, is_changed: bool) -> VariableDescription:
    """Describe a variable. is_changed: whether forward passes in training mode change it."""
    is_constant = not variable.trainable and not is_changed
    return VariableDescription(name, tuple(variable.shape), variable.trainable, is_constant)
