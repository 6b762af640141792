"""The kind and the attributes of Keras's layers, as common.map compares them.

No process of `common` imports Keras, so this reads the classes by name.
"""

from typing import Any

from common.map.factory import collect_plain_attributes
from common.map.keras_classes import KERAS_PACKAGES, find_keras_class
from common.map.keras_layers import KNOWN_KINDS, RECURRENT_KINDS
from common.map.layer_kinds import find_kind

ATTRIBUTES = {  # the name of an attribute in Keras's layers, and its name in common.map
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
COMPOSITES = {"MultiHeadAttention", "Bidirectional"}


def is_keras_layer(layer: object) -> bool:
    """Check whether an object is a layer of Keras 3 or Keras 2, such as a keras.Model."""
    return find_keras_class(layer, "Layer") is not None


def get_keras_kind(layer: object) -> str:
    """Return the name of the known Keras class that a layer is or derives from; otherwise the layer's own class."""
    return find_kind(layer, KERAS_PACKAGES, KNOWN_KINDS)


def is_composite(layer: object) -> bool:
    """Check whether a layer is one of Keras's that computes others as its parts, such as an attention."""
    return find_kind(layer, KERAS_PACKAGES, COMPOSITES) in COMPOSITES


def is_recurrent(layer: object) -> bool:
    """Check whether a layer is one of Keras's recurrent layers, or a cell of one."""
    return get_keras_kind(layer) in RECURRENT_KINDS


def get_keras_attributes(layer: object) -> dict[str, object]:
    """Return the attributes that common.map compares or names in errors, under the names of common.map.

    The momentum of BatchNorm is converted to PyTorch's definition, which is 1 minus Keras's.
    """
    attributes: dict[str, object] = collect_plain_attributes(layer, ATTRIBUTES)
    momentum = attributes.get("momentum")
    if isinstance(momentum, int | float):
        attributes["momentum"] = 1 - momentum
    if hasattr(layer, "depth_multiplier"):  # Keras 2's depthwise convolutions have a number of groups that they ignore
        attributes.pop("groups", None)
    return attributes


def list_own_variables(layer: Any) -> list[Any]:  # noqa: ANN401  a keras.Layer, and its variables
    """Return the variables of a layer itself, without the variables of layers in it.

    The variables of a recurrent layer are in its cell. An object without lists of variables has none.
    """
    owner = layer.cell if is_recurrent(layer) and hasattr(layer, "cell") else layer
    return [*getattr(owner, "_trainable_variables", ()), *getattr(owner, "_non_trainable_variables", ())]
