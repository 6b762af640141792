"""Conversion of the arrays of a batch to the arguments of a user's model."""

from collections.abc import Callable, Sequence
from typing import Literal

import keras
import tensorflow as tf

from common.map.factory import build_unknown_input_error, takes_inputs_by_name

Arguments = tuple[tuple[object, ...], dict[str, tf.Tensor]]  # positional and keyword arguments of a call
InputAdapter = Callable[[dict[str, tf.Tensor]], Arguments]  # from the inputs of a batch by name


def build_input_adapter(key: str, model: keras.Layer, names: Sequence[str]) -> InputAdapter:
    """Return a function that converts the inputs of a batch to the arguments of a model.

    Args:
        key: The config key that names the model, for errors.
        model: The user's model.
        names: The inputs that the model receives.

    Raises:
        UserError: The model does not take one of the inputs.
    """
    call_style = _find_call_style(key, model, names)

    def adapt(inputs: dict[str, tf.Tensor]) -> Arguments:
        arguments = {name: inputs[name] for name in names}
        if call_style == "dict":
            return (arguments,), {}
        return ((), arguments) if call_style == "keyword" else (tuple(arguments.values()), {})

    return adapt


def get_training_argument(model: keras.Layer, training: bool) -> dict[str, bool]:
    """Return the keyword argument `training` of a model's call; nothing if the call takes none."""
    return {"training": training} if model._call_has_training_arg else {}


def _find_call_style(key: str, model: keras.Layer, names: Sequence[str]) -> Literal["positional", "keyword", "dict"]:
    """Return how a model takes its inputs; "dict" means that it takes all of them as one dict."""
    if isinstance(model, keras.Sequential):
        return "positional"
    if isinstance(model, keras.Model) and not _is_subclassed(model):
        taken = [tensor.name for tensor in model.inputs]
        for name in names if len(names) > 1 or len(taken) > 1 else []:  # a single input may have any name
            if name not in taken:
                raise build_unknown_input_error(key, name, taken, names)
        return "dict" if len(taken) > 1 else "positional"
    parameters = [
        name for name in model._call_signature.parameters if name != "training" and (name != "mask" or name in names)
    ]
    if len(names) > 1 and len(parameters) == 1:
        return "dict"
    return "keyword" if takes_inputs_by_name(key, model.call, names) else "positional"


def _is_subclassed(model: keras.Model) -> bool:
    """Check whether a class of the user defines the model's call, so that the model is no graph of layers."""
    return not type(model).call.__module__.startswith("keras.")
