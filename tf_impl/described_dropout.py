"""Dropout of a user's model: which layers can be aligned, and a model without dropout for common.map."""

import keras

from common.map.description import DropoutDescription
from tf_impl.dropout import find_dropout_layers


def find_dropouts(model: keras.Layer) -> tuple[dict[int, DropoutDescription], list[str]]:
    """Return the dropout layers that `align_dropout` replaces, by id, and all other layers that drop.

    An attention does not count, because the dropout layer inside it does.
    """
    dropouts = {
        id(layer): DropoutDescription(layer.rate, name)
        for name, layer in find_dropout_layers(model).items()
        if layer.rate > 0
    }
    others = []
    for layer in model._flatten_layers():
        # Attentions and recurrent layers have their rates in `dropout` and `recurrent_dropout`.
        names = ("rate",) if "Dropout" in type(layer).__name__ else ("dropout", "recurrent_dropout")
        rates = [getattr(layer, name, 0.0) for name in names]
        is_aligned = id(layer) in dropouts or _has_dropout_layers(layer)
        if not is_aligned and any(isinstance(rate, float) and rate > 0 for rate in rates):
            others.append(f"{layer.path} ({type(layer).__name__})")
    return dropouts, others


def disable_dropout(model: keras.Layer) -> None:
    """Set all dropout rates to 0, because the two frameworks draw different masks.

    A ForwardTrace disables dropout that is not a layer but a function.
    """
    for layer in model._flatten_layers():
        if "Dropout" in type(layer).__name__ and hasattr(layer, "rate"):
            layer.rate = 0.0
        if _has_dropout_layers(layer):
            continue  # with a rate of 0 an attention would not call its dropout layer
        for name in ("dropout", "recurrent_dropout"):
            if isinstance(vars(layer).get(name), float):
                setattr(layer, name, 0.0)


def _has_dropout_layers(layer: keras.Layer) -> bool:
    """Check whether a layer contains dropout layers, as an attention does for its probabilities."""
    return any(isinstance(inner, keras.layers.Dropout) for inner in layer._flatten_layers(include_self=False))
