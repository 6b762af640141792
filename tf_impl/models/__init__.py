"""Models with the initial weights, and their parameters by name."""

from importlib import import_module

import keras
import numpy as np
import tensorflow as tf

from common.config.schema import Config
from common.models.initial_weights import InitialCheckpoint
from tf_impl.compilation import compile_model


def build_model(config: Config, initial: InitialCheckpoint) -> keras.Model:
    """The model with the initial weights, float64 for precision=float64, else float32 (bfloat16 is for computing)."""
    keras.utils.set_random_seed(config.train.seed)  # of dropout
    in_bfloat16 = "bfloat16" in (config.train.precision, config.train.matmul_precision)  # the same for matrices alone
    keras.config.set_dtype_policy("mixed_bfloat16" if in_bfloat16 else config.train.precision)
    if config.train.precision == "float64":  # the pass fuses nothing of this type, and prints a warning at each layer
        tf.config.optimizer.set_experimental_options({"remapping": False})
    kind = import_module(config.model.tf_module)  # alone: keras_hub takes a second to import
    model: keras.Model = kind.build(initial)
    load_weights(model, initial.weights())
    if config.train.compile:
        compile_model(model)
    return model


def load_weights(model: keras.Model, parameters: dict[str, np.ndarray]) -> None:
    """Set the parameters by their Hugging Face names."""
    for parameter in model.named_parameters:
        parameter.variable.assign(parameter.to_keras(parameters[parameter.name]))


def weights_by_name(model: keras.Model) -> dict[str, np.ndarray]:
    """The parameters under their Hugging Face names, in PyTorch's layout."""
    return {
        parameter.name: parameter.from_keras(tf.convert_to_tensor(parameter.variable.value).numpy())
        for parameter in model.named_parameters
    }
