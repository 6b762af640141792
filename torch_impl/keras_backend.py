"""Preparation of a process of PyTorch's side for Keras models on the PyTorch backend.

A process imports only one framework. On this backend, Keras imports TensorFlow only if a program asks for it. KerasHub
always imports TensorFlow for its tokenizers, unless it is not installed. So this file hides TensorFlow from KerasHub.
"""

import os
from collections.abc import Mapping

import torch

from common.errors import UserError
from common.hidden_packages import hide_packages
from common.map.factory import call_factory
from common.map.keras_attributes import is_keras_layer
from common.map.keras_classes import KERAS_2, find_keras_class
from common.map.random_layers import seed_python
from torch_impl.float64 import keep_float64
from torch_impl.keras_module import KerasModule
from torch_impl.unregistered_modules import check_registration

BACKEND = "torch"


def select_keras_backend() -> None:
    """Make Keras, if this process imports it, compute with PyTorch, whatever the user has set for other programs.

    The same holds for transformers 4, which supports both frameworks.
    """
    os.environ["KERAS_BACKEND"] = BACKEND
    os.environ["USE_TF"] = "0"  # otherwise transformers 4 imports TensorFlow if it is installed
    hide_packages("keras_hub", ("tensorflow", "tensorflow_text"))


def prepare_keras(precision: str, seed: int) -> None:
    """Import Keras, and prepare to build a model.

    Args:
        precision: The config key `train.precision`. A bfloat16 run has a float32 model and computes with autocast.
        seed: The seed of the initial weights and of native dropout.
    """
    select_keras_backend()
    import keras
    from keras.src.utils.module_utils import tensorflow

    tensorflow._available = False  # otherwise functions such as keras.utils.set_random_seed import TensorFlow
    reset_layer_names()
    seed_python(seed)  # Keras draws the seeds of layers with Python's generators
    torch.manual_seed(seed)
    dtype = "float64" if precision == "float64" else "float32"
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    if dtype == "float64":
        from torch_impl.keras_float64 import compute_in_float64

        compute_in_float64()


def reset_layer_names() -> None:
    """Make the numbers in the names of new layers start again, so that a model has the same names in every process."""
    from keras.src.utils.naming import reset_uids

    reset_uids()


def build_module(key: str, factory: str, arguments: Mapping[str, object], seed: int) -> torch.nn.Module:
    """Return the model of a factory, built for float64. A Keras model is wrapped in a KerasModule.

    Args:
        key: The config key that names the factory.
        factory: The factory as module:function.
        arguments: The factory's keyword arguments.
        seed: The seed of the initial weights.

    Raises:
        UserError: The factory failed, or returned no model.
    """
    select_keras_backend()
    torch.manual_seed(seed)
    with keep_float64():
        model = call_factory(key, factory, arguments)
    if is_keras_layer(model) and isinstance(model, torch.nn.Module):
        # Keras is prepared only for factories that need it, because its import takes seconds. The model was built
        # before, in float32, so it is built again.
        prepare_keras("float64", seed)
        with keep_float64():
            return KerasModule(call_factory(key, factory, arguments))
    if not isinstance(model, torch.nn.Module):
        reason = ""
        if find_keras_class(model, "Layer", (KERAS_2,)) is not None:
            reason = " of Keras 2, which computes only with TensorFlow; name the factory in model.tf"
        elif is_keras_layer(model):
            reason = ", whose backend is not torch; do not set KERAS_BACKEND in your code"
        raise UserError(
            f"{key}={factory}: returned {type(model).__name__}{reason}, not a torch.nn.Module or keras.Model"
        )
    check_registration(f"{key}={factory}", model)
    return model
