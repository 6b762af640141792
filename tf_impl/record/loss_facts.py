"""Description of Keras's losses with the arguments that decide their values."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping

from common.recording.record_format import LossFacts
from common.recording.record_writer import list_plain_values

CONTAINERS = {"CompileLoss", "LossesContainer"}  # they call the losses that a script passed to compile
ARRAYS = ("y_true", "y_pred")


def describe_loss(loss: object) -> LossFacts | None:
    """Describe a loss object of Keras; None if it only calls other losses."""
    kind = type(loss)
    if kind.__name__ in CONTAINERS:
        return None
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__.partition(".")[0] in ("keras", "tf_keras"):
        name = f"keras.losses.{kind.__name__}"
    function = getattr(loss, "fn", None)
    arguments: dict[str, object] = {"reduction": getattr(loss, "reduction", None)}
    if callable(function):
        arguments.update(_read_defaults(function))
        if kind.__name__ == "LossFunctionWrapper":
            name = getattr(function, "__name__", name)
    arguments.update(getattr(loss, "_fn_kwargs", {}))
    with contextlib.suppress(Exception):  # a loss of the script without a config
        arguments.update(loss.get_config())  # type: ignore[attr-defined]
    for key in ("fn", "name", "dtype"):
        arguments.pop(key, None)
    return {"name": name, "arguments": list_plain_values(arguments)}


def describe_function(function: object, arguments: Mapping[str, object]) -> LossFacts:
    """Describe a function of keras.losses. The script itself reduces what the function returns.

    Args:
        function: The function.
        arguments: The arguments that the script passes to it.
    """
    settings = {**_read_defaults(function), **{name: x for name, x in arguments.items() if name not in ARRAYS}}
    name = f"keras.losses.{getattr(function, '__name__', function)}"
    return {"name": name, "arguments": {**list_plain_values(settings), "reduction": None}}


def _read_defaults(function: object) -> dict[str, object]:
    try:
        parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return {}
    return {name: item.default for name, item in parameters.items() if item.default is not inspect.Parameter.empty}


def join_losses(losses: list[LossFacts]) -> LossFacts | None:
    """Return the description of several losses as one; None without any."""
    if len(losses) > 1:
        return {"name": "several", "arguments": {str(index): dict(loss) for index, loss in enumerate(losses)}}
    return losses[0] if losses else None
