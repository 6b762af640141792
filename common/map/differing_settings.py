"""Settings of paired layers that differ, such as an epsilon, as sentences."""

from common.map.array_differences import list_different_settings
from common.map.pair_variables import ParameterMap
from common.map.sublayers import LayerPair, name_pairs


def describe_settings(parameter_map: ParameterMap) -> list[str]:
    """Return a sentence for each setting that differs in the same way in one or several pairs of layers."""
    pairs: dict[str, list[LayerPair]] = {}
    for pair in parameter_map.layer_pairs:
        for name, torch_value, keras_value in list_different_settings(pair.torch.settings, pair.keras.settings):
            difference = f"{name} is {torch_value} in PyTorch and {keras_value} in Keras"
            pairs.setdefault(f"{pair.torch.kind}: {difference}", []).append(pair)
    return [f"{difference}, in {name_pairs(group)}" for difference, group in pairs.items()]
