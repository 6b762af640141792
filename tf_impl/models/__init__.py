"""Construction of models with the initial weights."""

from importlib import import_module

import keras
import tensorflow as tf

from common.config.schema import Config
from common.models.initial_weights import InitialCheckpoint
from tf_impl.compilation import compile_model
from tf_impl.models.parameter_groups import freeze_parameters
from tf_impl.models.weights import load_weights


def build_model(config: Config, initial: InitialCheckpoint) -> keras.Model:
    """Build the model of a config with the initial weights.

    The weights are float64 for train.precision=float64, otherwise float32. bfloat16 applies only to computations, and
    as train.matmul_precision only to products of matrices.
    """
    keras.utils.set_random_seed(config.train.seed)  # native dropout draws from this generator
    uses_bfloat16 = "bfloat16" in (config.train.precision, config.train.matmul_precision)
    keras.config.set_dtype_policy("mixed_bfloat16" if uses_bfloat16 else config.train.precision)
    if config.train.precision == "float64":  # remapping fuses no float64 operations, and warns about each layer
        tf.config.optimizer.set_experimental_options({"remapping": False})
    # Only the module of this model is imported: keras_hub takes a second.
    model: keras.Model = import_module(config.model.tf_module).build(initial)
    load_weights(model, initial.weights())
    freeze_parameters(model, config)
    if config.train.compile:
        compile_model(model)
    return model
