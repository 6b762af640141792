"""Models with the initial weights."""

from importlib import import_module

import keras
import tensorflow as tf

from common.config.schema import Config
from common.models.initial_weights import InitialCheckpoint
from tf_impl.compilation import compile_model
from tf_impl.models.weights import load_weights


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
