"""Descriptions of the layers that a forward pass enters, and of the variables, for common.map."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from common.map.connections import find_connections
from common.map.description import LayerDescription, VariableDescription
from common.map.keras_attributes import is_keras_layer, list_own_variables
from torch_impl.forward_trace import ForwardTrace
from torch_impl.keras_module import KerasModule
from torch_impl.layer_attributes import get_layer_attributes, get_layer_kind


def describe_layers(trace: ForwardTrace, names_by_id: Mapping[int, str]) -> list[LayerDescription]:
    """Describe the layers that own parameters or buffers, in the order in which a pass entered them.

    Args:
        trace: The trace of the pass.
        names_by_id: The names of the parameters and buffers by their identity.
    """
    layers = []
    for path, layer in trace.entered.items():
        roles = {
            role: names_by_id[id(tensor)]
            for role, tensor in _get_variables_by_role(layer).items()
            if id(tensor) in names_by_id
        }
        if roles:
            kind, attributes = get_layer_kind(layer), get_layer_attributes(layer)
            shape, composite = trace.unflattened_shapes.get(path), trace.composites.get(path)
            reshaped = trace.reshaped_shapes.get(path)
            layers.append(LayerDescription(kind, path, attributes, roles, shape, composite, reshaped_shape=reshaped))
    channel_axis = -1 if any(is_keras_layer(layer) for layer in trace.entered.values()) else 1
    convolutions = {layer.path: channel_axis for layer in layers if "Conv" in layer.kind}
    connections = find_connections({layer.path for layer in layers}, trace.calls, convolutions)
    return [replace(layer, connection=connections.get(layer.path)) for layer in layers]


def describe_variable(name: str, tensor: torch.Tensor, is_changed: bool) -> VariableDescription:
    """Describe a parameter or buffer. is_changed: whether forward passes in training mode change it."""
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    trainable = is_parameter and tensor.requires_grad
    return VariableDescription(name, tuple(tensor.shape), trainable, is_constant=not is_parameter and not is_changed)


def _get_variables_by_role(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the variables of a layer by role. An attention includes the variables of its output projection."""
    if isinstance(module, KerasModule):
        return _get_keras_variables(module.keras)
    if is_keras_layer(module):
        return _get_keras_variables(module)
    recurse = get_layer_kind(module) == "MultiheadAttention"
    return {**dict(module.named_parameters(recurse=recurse)), **dict(module.named_buffers(recurse=recurse))}


def _get_keras_variables(layer: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401  a keras.Layer
    """Return the tensors of a Keras layer's variables by role. A recurrent layer has the variables of its cell."""
    return {variable.name: variable._value for variable in list_own_variables(layer)}
