"""Layers of a PyTorch and a Keras model whose inputs and outputs can be compared.

Most pairs of sublayers are a layer of each model. A composite layer, such as PyTorch's MultiheadAttention, computes
several sublayers at once. A composite layer is compared with the composite layer of the other model, or with the other
model's layers that compute the same sublayers: their first input and their last output.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.map.sublayers import LayerPair, Sublayer
from common.map.torch_layers import RECURRENT_KINDS

ATTENTION = "attention"


@dataclass(frozen=True)
class ComparableLayers:
    """Layers of both models that compute the same if the models are the same.

    Attributes:
        kind: The kind of the layers under a name that both frameworks share.
        torch: The paths of PyTorch's layers in the order of execution: the first one receives the input, and the last
            one returns the output. Usually there is one.
        keras: The paths of Keras's layers in the same order.
        torch_settings: The settings of PyTorch's layer that decide its output; those that several ones share.
        keras_settings: The settings of Keras's layer that decide its output; those that several ones share.
    """

    kind: str
    torch: list[str]
    keras: list[str]
    torch_settings: Mapping[str, object]
    keras_settings: Mapping[str, object]


def list_comparable_layers(layer_pairs: Sequence[LayerPair]) -> list[ComparableLayers]:
    """Return the layers whose inputs and outputs can be compared, in the order of execution.

    A layer with parameters of an unknown kind is left out: even if its parameter has a counterpart, the layer may
    compute anything else.
    """
    comparable = []
    for group in _group_pairs(layer_pairs):
        torch, keras = _list_paths([pair.torch for pair in group]), _list_paths([pair.keras for pair in group])
        kinds = {pair.torch.kind for pair in group}
        if not torch or not keras or kinds & {"parameter"}:
            continue
        if len(group) > 1:
            kind = ATTENTION if kinds == {"linear"} else group[-1].torch.kind
            # The directions and layers of a recurrent layer have the settings that all of them share
            is_recurrent = kinds <= {*RECURRENT_KINDS.values()}
            settings_of_torch = _join_settings([pair.torch for pair in group] if is_recurrent else [])
            settings_of_keras = _join_settings([pair.keras for pair in group] if is_recurrent else [])
            comparable.append(ComparableLayers(kind, torch, keras, settings_of_torch, settings_of_keras))
        else:
            pair = group[0]
            comparable.append(ComparableLayers(pair.torch.kind, torch, keras, pair.torch.settings, pair.keras.settings))
    return comparable


def _join_settings(sublayers: Sequence[Sublayer]) -> dict[str, object]:
    """Return the settings that all sublayers have."""
    first = sublayers[0].settings if sublayers else {}
    missing = object()
    return {k: x for k, x in first.items() if all(layer.settings.get(k, missing) == x for layer in sublayers)}


def _group_pairs(layer_pairs: Sequence[LayerPair]) -> list[list[LayerPair]]:
    """Return the pairs in groups. A group has the sublayers that one composite layer computes, or a single pair."""
    groups: dict[object, list[LayerPair]] = {}
    for pair in layer_pairs:
        key: object = id(pair)
        for side, sublayer in (("torch", pair.torch), ("keras", pair.keras)):
            if sublayer.composite is not None and not sublayer.is_recorded:
                key = side, sublayer.composite
        groups.setdefault(key, []).append(pair)
    return list(groups.values())


def _list_paths(sublayers: Sequence[Sublayer]) -> list[str]:
    """Return the paths of the layers that compute sublayers; none if no layer returns the output of the last one."""
    if sublayers[-1].output is None:
        return []
    counts = Counter(sublayer.composite for sublayer in sublayers)
    paths = [
        sublayer.path
        if sublayer.is_recorded and (sublayer.composite is None or counts[sublayer.composite] == 1)
        else sublayer.composite or sublayer.output
        for sublayer in sublayers
    ]
    return list(dict.fromkeys(path for path in paths if path is not None))
