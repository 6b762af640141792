"""How a user's model is called with the arrays of a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from common.map.factory import not_taken, takes_by_name

InputAdapter = Callable[[dict[str, tf.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]


def build_input_adapter(key: str, model: keras.Layer, names: Sequence[str]) -> InputAdapter:
    """A function from the inputs by name to the arguments of a call. Raises UserError for a name that is not taken."""
    by_name = _takes_by_name(key, model, names)

    def arguments(inputs: dict[str, tf.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        placed = {name: inputs[name] for name in names}
        if by_name is None:
            return (placed,), {}
        return ((), placed) if by_name else (tuple(placed.values()), {})

    return arguments


def get_training_argument(model: keras.Layer, training: bool) -> dict[str, bool]:
    """The argument that says whether a model is trained, where its call has one."""
    return {"training": training} if model._call_has_training_arg else {}


def _takes_by_name(key: str, model: keras.Layer, names: Sequence[str]) -> bool | None:
    """As `takes_by_name`; None of a model that takes several inputs as a dict."""
    if isinstance(model, keras.Sequential):
        return False
    if isinstance(model, keras.Model) and not _is_subclassed(model):
        taken = [each.name for each in model.inputs]
        for name in names if len(names) > 1 or len(taken) > 1 else []:
            if name not in taken:
                raise not_taken(key, name, taken, names)
        return None if len(taken) > 1 else False
    parameters = [
        name for name in model._call_signature.parameters if name != "training" and (name != "mask" or name in names)
    ]
    if len(names) > 1 and len(parameters) == 1:
        return None
    return takes_by_name(key, model.call, names)


def _is_subclassed(model: keras.Model) -> bool:
    """Whether its call is its own, not that of a graph of layers."""
    return not type(model).call.__module__.startswith("keras.")
