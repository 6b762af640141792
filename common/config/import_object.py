"""Objects that a config names as `module:name`."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from common.errors import UserError, describe_error


def import_object(path: str) -> Any:  # noqa: ANN401  a class, a function, or whatever the user's module has
    """Return an object of a module. path: `module:name`, such as `my_models.resnet:build`.

    hydra.utils.get_object is not used: it takes `module.name`, and its errors do not say whether the module or the name
    is missing.

    Raises:
        UserError: the module has no such name.
        Exception: any error that the import of the module raises.
    """
    module_name, _, name = path.partition(":")
    module = importlib.import_module(module_name)
    if not hasattr(module, name):
        raise UserError(f"{path}: {module_name} has no function {name}")
    return getattr(module, name)


def import_function(key: str, path: str) -> Callable[..., Any]:
    """Return the function that a config key names as module:function. Raise UserError if it cannot be imported."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise UserError(f"{key}={path}: must be module:function, such as my_models.resnet:build")
    try:
        function = import_object(path)
    except UserError as error:
        raise UserError(f"{key}={error}") from error
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise UserError(f"{key}={path}: importing it raised {describe_error(error)}") from error
        raise UserError(
            f"{key}={path}: no module {module} in the working directory or on the Python path "
            f"({sys.path[0] or 'here'}, ...)"
        ) from error
    except Exception as error:
        raise UserError(f"{key}={path}: importing it raised {describe_error(error)}") from error
    if not callable(function):
        raise UserError(f"{key}={path}: {module} has no function {name}")
    return function
