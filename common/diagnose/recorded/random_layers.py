"""Layers that draw random numbers, such as dropout, and whether the layers of two records drew the same numbers."""

from collections.abc import Sequence

import numpy as np

from common.diagnose.recorded.layer_vocabulary import RECURRENT, find_common_kind, find_dropout_rate, has_inner_dropout
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.rounding import is_close

# Layers of Keras that draw random numbers in training mode. A class of the script may have a name that begins alike.
RANDOM_KINDS = {"GaussianNoise", "GaussianDropout", "MixUp", "CutMix", "RandAugment", "AugMix"} | {
    f"Random{change}"
    for change in (
        "Brightness", "ColorDegeneration", "ColorJitter", "Contrast", "Crop", "ElasticTransform", "Erasing", "Flip",
        "GaussianBlur", "Grayscale", "Height", "Hue", "Invert", "Perspective", "Posterization", "Rotation",
        "Saturation", "Sharpness", "Shear", "Translation", "Width", "Zoom",
    )
}  # fmt: skip
RECURRENT_RATES = ("dropout", "recurrent_dropout")  # attributes of a recurrent layer that drops elements


def find_random_layers(side: RecordedSide) -> list[str]:
    """Return the paths of the layers in training mode that draw random numbers."""
    model = side.record.facts["model"]
    observed_paths = model.get("random_layers", []) if model is not None else []
    declared_paths = [
        layer["path"]
        for layer in side.layers
        if layer["training"]
        and (
            find_dropout_rate(layer)
            or has_inner_dropout(layer)
            or layer["kind"] in RANDOM_KINDS
            or (find_common_kind(layer["kind"]) in RECURRENT and any(map(layer["attributes"].get, RECURRENT_RATES)))
        )
    ]
    return [*declared_paths, *(path for path in observed_paths if path not in declared_paths)]


def find_changing_layers(side: RecordedSide) -> list[str]:
    """Return the paths of the random layers whose draws changed their input in the first step.

    A crop to the size of the images and a stochastic depth of rate 0 draw numbers that change nothing, for example.
    """
    paths = find_random_layers(side)
    calls = side.read_layer_calls(side.record.steps[0]) if paths and side.record.steps else {}

    def keeps_input(path: str) -> bool:
        arrays = (calls[path].received, calls[path].returned) if path in calls else (None, None)
        return arrays[0] is not None and arrays[1] is not None and np.array_equal(arrays[0], arrays[1])

    return [path for path in paths if not keeps_input(path)]


def have_same_draws(a: RecordedSide, b: RecordedSide, layers: Sequence[Sequence[str]], order: np.ndarray) -> bool:
    """Check whether the random layers of two records of one framework drew the same numbers in the first step.

    A mistake before a dropout layer changes the input of the layer, but not which elements it drops. Equal masks of
    dropout layers imply equal random numbers in other layers, such as attentions, because all follow from one seed.

    Args:
        a: Side A.
        b: Side B.
        layers: The paths of the random layers of A and of B.
        order: For each example of B, its index among A's examples.
    """
    if a.is_torch != b.is_torch or [*layers[0]] != [*layers[1]] or not np.array_equal(order, np.arange(len(order))):
        return False
    calls_a, calls_b = (side.read_layer_calls(side.record.steps[0]) for side in (a, b))
    layers_a = {layer["path"]: layer for layer in a.layers}
    dropout_paths = [path for path in layers[0] if path in layers_a and find_dropout_rate(layers_a[path])]
    models = [side.record.facts["model"] for side in (a, b)]
    states = [None if model is None else model.get("random_state") for model in models]
    if not dropout_paths and None not in states:
        return states[0] == states[1]  # the code of the model draws them, which only the generator shows
    for path in dropout_paths or layers[0]:
        if path not in calls_a or path not in calls_b:
            return False
        arrays = [array for calls in (calls_a, calls_b) for array in (calls[path].received, calls[path].returned)]
        if any(array is None for array in arrays) or len({array.shape for array in arrays if array is not None}) > 1:
            return False
        received_a, returned_a, received_b, returned_b = (np.asarray(array) for array in arrays)
        if find_dropout_rate(layers_a[path]):
            shows_mask = (received_a != 0) & (received_b != 0)  # an input of 0 is 0 whether it is dropped or not
            if not np.array_equal((returned_a == 0)[shows_mask], (returned_b == 0)[shows_mask]):
                return False
        elif not (is_close(received_a, received_b) and is_close(returned_a, returned_b)):
            return False
    return True
