"""Variables of a user's models that have no counterpart, which only common.diagnose lets both models train with.

A variable of Keras without a counterpart has its own path as its name in checkpoints.
"""

import math

import numpy as np

from common.errors import UserError
from common.map.pair_models import PairedModels
from common.map.pair_variables import ParameterMap
from common.map.side import Side
from common.map.unpaired_layers import UnpairedLayer, list_unpaired_layers


def has_only_missing_layers(models: PairedModels) -> bool:
    """Check whether the variables without a counterpart cannot be counterparts of each other. Vectors do not count.

    Matrices of equal numbers of elements on both sides may belong to the same layer in classes of unknown kinds.
    """
    sizes = [
        {math.prod(description.variables[name].shape) for name in names if len(description.variables[name].shape) > 1}
        for description, names in (
            (models.torch_description, models.parameter_map.unmatched_torch),
            (models.keras_description, models.parameter_map.unmatched_keras),
        )
    ]
    return not sizes[0] & sizes[1]


def write_parameter_map(parameter_map: ParameterMap) -> dict[str, str]:
    """Return the transformation of each Keras variable as text, by the path of the variable."""
    pairs = {pair.keras: str(pair.transformation) for pair in parameter_map.variable_pairs}
    return pairs | {path: path for path in parameter_map.unmatched_keras}


def read_unpaired_weights(keras_side: Side, models: PairedModels) -> dict[str, np.ndarray]:
    """Return the initial values of Keras's variables that have no counterpart, by path.

    Raises:
        UserError: A parameter of PyTorch has the same name.
    """
    paths = models.parameter_map.unmatched_keras
    if not paths:
        return {}
    for path in paths:
        if path in models.torch_description.variables:
            raise UserError(f"model.tf: {path} has the name of another parameter of PyTorch; rename one of them")
    weights = keras_side.call("weights")
    return {path: weights[path] for path in paths}


def list_unpaired(models: PairedModels) -> dict[str, list[UnpairedLayer]]:
    """Return the layers with variables that have no counterpart, by side, "torch" or "tf"."""
    parameter_map = models.parameter_map
    unpaired = {
        "torch": list_unpaired_layers(models.torch_description, parameter_map.unmatched_torch),
        "tf": list_unpaired_layers(models.keras_description, parameter_map.unmatched_keras),
    }
    return {side: layers for side, layers in unpaired.items() if layers}
