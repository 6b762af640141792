"""What a model has to save: its parameters and the moving statistics of BatchNorm, by their Hugging Face names."""

import keras
import numpy as np
import tensorflow as tf


def load_weights(model: keras.Model, weights: dict[str, np.ndarray]) -> None:
    """Set them by name."""
    for parameter in model.named_parameters:
        parameter.variable.assign(parameter.to_keras(weights))


def read_weights(model: keras.Model) -> dict[str, np.ndarray]:
    """Them by name, in PyTorch's layout."""
    found: dict[str, np.ndarray] = {}
    for parameter in model.named_parameters:
        parameter.to_torch(tf.convert_to_tensor(parameter.variable.value).numpy(), found)
    return found
