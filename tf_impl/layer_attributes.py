"""The kind and the attributes of Keras's layers, as common.map compares them."""

import keras

from common.map.factory import collect_plain_attributes
from common.map.keras_layers import KNOWN_KINDS

ATTRIBUTES = {  # the name of an attribute in Keras's layers: its name in common.map
    "epsilon": "epsilon",
    "momentum": "momentum",
    "groups": "groups",
    "strides": "stride",
    "dilation_rate": "dilation",
    "padding": "padding",
    "equation": "equation",
    "reset_after": "reset_after",
    "synchronized": "synchronized",
}


def get_layer_kind(layer: keras.Layer) -> str:
    """Return the name of the known Keras class that a layer is or derives from; otherwise the layer's own class.

    A class of another library is named with it if it is known, or if it has the name of a known class of the framework.
    """
    classes = [
        kind for kind in type(layer).__mro__ if kind.__module__.startswith("keras.") and kind.__name__ in KNOWN_KINDS
    ]
    if classes:
        return classes[0].__name__
    name = type(layer).__name__
    qualified_name = f"{type(layer).__module__.partition('.')[0]}.{name}"
    return qualified_name if {name, qualified_name} & KNOWN_KINDS else name


def get_layer_attributes(layer: keras.Layer) -> dict[str, object]:
    """Return the attributes that common.map compares or names in errors, under the names of common.map.

    The momentum of BatchNorm is converted to PyTorch's definition, which is 1 minus Keras's.
    """
    attributes: dict[str, object] = collect_plain_attributes(layer, ATTRIBUTES)
    momentum = attributes.get("momentum")
    if isinstance(momentum, int | float):
        attributes["momentum"] = 1 - momentum
    return attributes
