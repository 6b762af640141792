"""Kinds and hyperparameters of recorded layers in one vocabulary for PyTorch and Keras.

A record describes each layer by its facts: its class, its path in the model, and its attributes.
"""

from collections.abc import Mapping

from common.map import keras_layers, torch_layers
from common.recording.record_format import LayerFacts

TORCH_ATTRIBUTES = {  # the name of an attribute in PyTorch, and its common name
    "eps": "epsilon", "momentum": "momentum", "groups": "groups", "stride": "stride", "dilation": "dilation",
    "padding": "padding", "padding_mode": "padding_mode", "padding_idx": "padding_idx",
    "negative_slope": "negative_slope", "approximate": "approximate", "num_heads": "num_heads",
    "ceil_mode": "ceil_mode", "align_corners": "align_corners",
}  # fmt: skip
KERAS_ATTRIBUTES = {  # the name of an attribute in Keras, and its common name
    "epsilon": "epsilon", "momentum": "momentum", "groups": "groups", "strides": "stride", "dilation_rate": "dilation",
    "padding": "padding", "equation": "equation", "reset_after": "reset_after", "negative_slope": "negative_slope",
    "num_heads": "num_heads", "mask_zero": "mask_zero",
}  # fmt: skip
KINDS: Mapping[str, str] = {
    **{kind: names[0] for kind, names in torch_layers.SIMPLE_KINDS.items()},
    **{kind: names[0] for kind, names in keras_layers.SIMPLE_KINDS.items()},
    **torch_layers.RECURRENT_KINDS,
    **keras_layers.RECURRENT_KINDS,
    **dict.fromkeys(keras_layers.CONVOLUTIONS, "convolution"),
    **dict.fromkeys(keras_layers.TRANSPOSED_CONVOLUTIONS, "transposed convolution"),
    "Dense": "linear",
    "EinsumDense": "linear",
}
RECURRENT = {*torch_layers.RECURRENT_KINDS.values(), *keras_layers.RECURRENT_KINDS.values()}
DROPOUT_RATES = ("p", "rate")  # the attribute with the rate of a dropout layer, in PyTorch and in Keras


def find_common_kind(kind: str) -> str:
    """Return the kind of a layer under a name that both frameworks share; empty if it is unknown."""
    return KINDS.get(kind, "")


def translate_attributes(layer: LayerFacts, is_torch: bool) -> dict[str, object]:
    """Return the hyperparameters of a layer under common names. The momentum of BatchNorm is converted to PyTorch's."""
    names = TORCH_ATTRIBUTES if is_torch else KERAS_ATTRIBUTES
    values = {new: layer["attributes"][name] for name, new in names.items() if name in layer["attributes"]}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    momentum = values.get("momentum")
    if not is_torch and isinstance(momentum, int | float):
        values["momentum"] = round(1 - momentum, 12)
    if find_common_kind(layer["kind"]) in RECURRENT:
        values.update(_list_activations(layer["attributes"], is_torch))
        if layer.get("composite") is None:  # the backward layer of a Bidirectional goes backwards
            values["go_backwards"] = layer["attributes"].get("go_backwards", False)
    return values


def _list_activations(attributes: Mapping[str, object], is_torch: bool) -> dict[str, object]:
    """Return the activations of a recurrent layer. PyTorch's LSTM and GRU have no attributes for theirs."""
    if is_torch:
        return {"activation": attributes.get("nonlinearity", "tanh"), "recurrent_activation": "sigmoid"}
    names = ("activation", "recurrent_activation")  # a function of the script has no name
    return {name: attributes[name] for name in names if isinstance(attributes.get(name), str)}


def find_dropout_rate(layer: LayerFacts) -> float | None:
    """Return the rate of a dropout layer; None for another layer."""
    if "Dropout" not in layer["kind"]:
        return None
    values = (layer["attributes"].get(name) for name in DROPOUT_RATES)
    return next((float(value) for value in values if isinstance(value, int | float)), None)


def has_inner_dropout(layer: LayerFacts) -> bool:
    """Check whether a layer, such as an attention, drops elements within itself."""
    rate = layer["attributes"].get("dropout")
    return isinstance(rate, int | float) and 0 < rate < 1
