"""Conversion of the arrays of a batch to the arguments of a user's model."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from common.map.keras_calls import build_keras_adapter

Arguments = tuple[tuple[object, ...], dict[str, tf.Tensor]]  # positional and keyword arguments of a call
InputAdapter = Callable[[dict[str, tf.Tensor]], Arguments]  # converts the inputs of a batch, which it gets by name


def build_input_adapter(key: str, model: keras.Layer, names: Sequence[str]) -> InputAdapter:
    """Return a function that converts the inputs of a batch to the arguments of a model.

    Args:
        key: The config key that names the model, for errors.
        model: The user's model.
        names: The inputs that the model receives.

    Raises:
        UserError: The model does not take one of the inputs.
    """
    return build_keras_adapter(key, model, names)
