"""A user's factory: the function, named as `module:function` in the config, that builds and returns a model.

The file also finds the user's files that a factory imports, the inputs that a model takes, and the attributes of its
layers.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from common.config.import_object import import_function
from common.errors import UserError, describe_error, find_user_file

PARAMETER_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
NOT_PLAIN = object()  # marks a value that only a process with the framework can read


def call_factory(key: str, factory: str, arguments: Mapping[str, object]) -> Any:  # noqa: ANN401  any model
    """Call the user's factory and return its result.

    Args:
        key: The config key that names the factory.
        factory: The factory as module:function.
        arguments: Its keyword arguments.

    Raises:
        UserError: The factory does not exist or raised an error.
    """
    try:
        return import_function(key, factory)(**arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{key}={factory}: raised {describe_error(error)}") from error


def list_user_files() -> list[str]:
    """Return the files of the imported modules, except those of installed packages and of Lockstep."""
    # A copy, because importing a module changes sys.modules.
    names = {str(module.__file__) for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
    return sorted(file for file in map(find_user_file, names) if file is not None)


def takes_inputs_by_name(key: str, call: Callable[..., object], names: Sequence[str]) -> bool:
    """Check whether a model takes its inputs by name.

    Args:
        key: The config key that names the factory.
        call: The method that computes the model.
        names: The names of the inputs.

    Returns:
        True if the method has parameters of these names; False if it takes a single input under another name.

    Raises:
        UserError: There are several inputs, and the method does not take one of them.
    """
    parameters = inspect.signature(call).parameters.values()
    taken = [
        parameter.name
        for parameter in parameters
        if parameter.kind in PARAMETER_KINDS and parameter.name not in ("self", "training")
    ]
    unknown = [name for name in names if name not in taken]
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if not unknown or (takes_all and len(names) > 1):
        return True
    if len(names) == 1:
        return False
    raise build_unknown_input_error(key, unknown[0], taken, names)


def build_unknown_input_error(key: str, name: str, taken: Sequence[str], names: Sequence[str]) -> UserError:
    """Build the error of an input that a model does not take.

    Args:
        key: The config key that names the factory.
        name: The name of the input.
        taken: The names of the inputs that the model takes.
        names: The names of all inputs.
    """
    masked = name.removesuffix("_mask")
    is_mask = masked != name and masked in names
    mask = f"; it is 1 where {masked} has values and 0 where a batch is padded" if is_mask else ""
    return UserError(f"{key}: takes no input {name}, which the data has{mask}; it takes {', '.join(taken)}")


def collect_plain_attributes(layer: object, names: Mapping[str, str]) -> dict[str, object]:
    """Return the attributes of a layer that a process without its framework can read, such as numbers and texts.

    Args:
        layer: The layer.
        names: The name of each attribute in the result, by its name in the layer.
    """
    attributes = {new: _to_plain(getattr(layer, name)) for name, new in names.items() if hasattr(layer, name)}
    return {name: value for name, value in attributes.items() if value is not NOT_PLAIN}


def _to_plain(value: object) -> object:
    """Return a number, a text, None or a tuple of these; NOT_PLAIN for any other value, such as an enum."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        items = tuple(_to_plain(item) for item in value)
        return NOT_PLAIN if any(item is NOT_PLAIN for item in items) else items
    return value if value is None or type(value) in (int, float, bool, str) else NOT_PLAIN
