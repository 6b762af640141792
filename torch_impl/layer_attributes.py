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
    """Return the name of the known PyTorch class that a layer is or derives from; otherwise the layer's own class.

    A class of another library is named with it if it is known, or if it has the name of a known class of the framework.
    """
    classes = [
        kind for kind in type(layer).__mro__ if kind.__module__.startswith("torch.") and kind.__name__ in KNOWN_KINDS
    ]
    if classes:
        return classes[0].__name__
    name = type(layer).__name__
    qualified_name = f"{type(layer).__module__.partition('.')[0]}.{name}"
    return qualified_name if {name, qualified_name} & KNOWN_KINDS else name


def get_layer_attributes(layer: torch.nn.Module) -> dict[str, object]:
    """Return the attributes that common.map compares or names in errors, under the names of common.map."""
    return collect_plain_attributes(layer, ATTRIBUTES)
