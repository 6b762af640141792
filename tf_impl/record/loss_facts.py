"""Description of Keras's losses with the arguments that decide their values."""

from __future__ import annotations

import contextlib
import inspect

from common.recording.record_format import LossFacts
from common.recording.record_writer import list_plain_values

CONTAINERS = {"CompileLoss", "LossesContainer"}  # they call the losses that a script passed to compile


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


def _read_defaults(function: object) -> dict[str, object]:
    try:
        parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return {}
    return {name: item.default for name, item in parameters.items() if item.default is not inspect.Parameter.empty}
