"""Descriptions of the layers that a forward pass enters, and of the variables, for common.map."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from common.map.connections import find_connections
from common.map.description import LayerDescription, VariableDescription
from torch_impl.forward_trace import ForwardTrace
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
            layers.append(LayerDescription(kind, path, attributes, roles, trace.unflattened_shapes.get(path)))
    convolutions = {layer.path: 1 for layer in layers if "Conv" in layer.kind}
    connections = find_connections({layer.path for layer in layers}, trace.calls, convolutions)
    return [replace(layer, connection=connections.get(layer.path)) for layer in layers]


def describe_variable(name: str, tensor: torch.Tensor, is_changed: bool) -> VariableDescription:
    """Describe a parameter or buffer. is_changed: whether forward passes in training mode change it."""
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    trainable = is_parameter and tensor.requires_grad
    return VariableDescription(name, tuple(tensor.shape), trainable, constant=not is_parameter and not is_changed)


def _get_variables_by_role(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the variables of a layer by role. An attention includes the variables of its output projection."""
    recurse = get_layer_kind(module) == "MultiheadAttention"
    return {**dict(module.named_parameters(recurse=recurse)), **dict(module.named_buffers(recurse=recurse))}
