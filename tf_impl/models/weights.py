"""The weights of a model by their names in PyTorch's model.

Weights are the parameters, the moving statistics of BatchNorm, and the other variables that forward passes change.

`model.named_parameters` pairs each variable of the Keras model with its name and its layout in PyTorch. If the Keras
model lacks parameters or rows of PyTorch's, `model.lacking_weights` keeps their values for checkpoints.
"""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from common.models.weight_files import check_weights


def load_weights(model: keras.Model, weights: Mapping[str, np.ndarray]) -> None:
    """Set the weights of a model. Raise UserError if one is missing. weights: by name, in PyTorch's layout."""
    check_weights(weights, [name for parameter in model.named_parameters for name in parameter.names])
    if hasattr(model, "lacking_weights"):
        model.lacking_weights |= {name: weights[name] for name in model.lacking_weights if name in weights}
    for parameter in model.named_parameters:
        parameter.variable.assign(parameter.to_keras(weights))


def read_weights(model: keras.Model) -> dict[str, np.ndarray]:
    """Return the weights of a model by name, in PyTorch's layout."""
    lacking: dict[str, np.ndarray] = getattr(model, "lacking_weights", {})
    weights = {name: array.astype(model.variable_dtype) for name, array in lacking.items()}
    for parameter in model.named_parameters:
        parameter.to_torch(tf.convert_to_tensor(parameter.variable.value).numpy(), weights)
    return weights
