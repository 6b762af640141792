"""The kind and the attributes of PyTorch's layers, as common.map compares them."""

import torch

from common.map.factory import collect_plain_attributes
from common.map.keras_attributes import get_keras_attributes, get_keras_kind, is_keras_layer
from common.map.layer_kinds import find_kind
from common.map.torch_layers import KNOWN_KINDS

ATTRIBUTES = {  # the name of an attribute in PyTorch's layers, and its name in common.map
    "eps": "epsilon",
    "variance_epsilon": "epsilon",
    "momentum": "momentum",
    "groups": "groups",
    "stride": "stride",
    "dilation": "dilation",
    "padding_idx": "padding_idx",
}


def get_layer_kind(layer: torch.nn.Module) -> str:
    """Return the name of the known PyTorch class that a layer is or derives from; otherwise the layer's own class.

    A layer of Keras has the name of a known Keras class.
    """
    if is_keras_layer(layer):
        return get_keras_kind(layer)
    return find_kind(layer, ("torch",), KNOWN_KINDS)


def get_layer_attributes(layer: torch.nn.Module) -> dict[str, object]:
    """Return the attributes that common.map compares or names in errors, under the names of common.map."""
    if is_keras_layer(layer):
        return get_keras_attributes(layer)
    return collect_plain_attributes(layer, ATTRIBUTES)
