"""The kind and the attributes of PyTorch's layers, as common.map compares them."""

import torch

from common.map.factory import collect_plain_attributes
from common.map.torch_layers import KNOWN_KINDS

ATTRIBUTES = {  # the name of an attribute in PyTorch's layers: its name in common.map
    "eps": "epsilon",
    "momentum": "momentum",
    "groups": "groups",
    "stride": "stride",
    "dilation": "dilation",
    "padding_idx": "padding_idx",
}


def get_layer_kind(layer: torch.nn.Module) -> str:
    """Return the name of the known PyTorch class that a layer is or derives from; otherwise the layer's own class."""
    classes = [
        kind for kind in type(layer).__mro__ if kind.__module__.startswith("torch.") and kind.__name__ in KNOWN_KINDS
    ]
    return classes[0].__name__ if classes else type(layer).__name__


def get_layer_attributes(layer: torch.nn.Module) -> dict[str, object]:
    """Return the attributes that common.map compares or names in errors, under the names of common.map."""
    return collect_plain_attributes(layer, ATTRIBUTES)
