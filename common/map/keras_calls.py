"""Arguments of the call of a Keras model. No process of `common` imports Keras, so this reads the classes by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from common.map.factory import build_unknown_input_error, takes_inputs_by_name
from common.map.keras_classes import get_user_model, is_keras_class, is_keras_module

Tensor = TypeVar("Tensor")
Arguments = tuple[tuple[object, ...], dict[str, Tensor]]  # positional and keyword arguments of a call


def build_keras_adapter(
    key: str,
    model: Any,  # noqa: ANN401  a keras.Layer
    names: Sequence[str],
) -> Callable[[Mapping[str, Tensor]], Arguments[Tensor]]:
    """Return a function that converts the inputs of a batch by name to the arguments of a model.

    Args:
        key: The config key that names the model, for errors.
        model: The user's model, a keras.Layer.
        names: The inputs that the model receives.

    Raises:
        UserError: The model does not take one of the inputs.
    """
    call_style = _find_call_style(key, model, names)

    def adapt(inputs: Mapping[str, Tensor]) -> Arguments[Tensor]:
        arguments = {name: inputs[name] for name in names}
        if call_style == "dict":
            return (arguments,), {}
        return ((), arguments) if call_style == "keyword" else (tuple(arguments.values()), {})

    return adapt


def get_training_argument(model: Any, training: bool) -> dict[str, bool]:  # noqa: ANN401  a keras.Layer
    """Return the keyword argument `training` of a model's call; nothing if the call takes none."""
    return {"training": training} if get_user_model(model)._call_has_training_arg else {}


def _find_call_style(
    key: str,
    model: Any,  # noqa: ANN401
    names: Sequence[str],
) -> Literal["positional", "keyword", "dict"]:
    """Return the way to pass inputs to a model. "dict": all inputs in one dict."""
    model = get_user_model(model)
    classes = {kind.__name__ for kind in type(model).__mro__ if is_keras_class(kind)}
    if "Sequential" in classes:
        return "positional"
    # Whether a class of the user defines its call
    is_subclassed = not is_keras_module(type(model).call.__module__)
    if "Model" in classes and not is_subclassed:
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
