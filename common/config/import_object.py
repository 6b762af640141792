"""Objects that a config names as `module:name`."""

import importlib
from typing import Any

from common.errors import UserError


def import_object(path: str) -> Any:  # noqa: ANN401  a class, a function, or whatever the user's module has
    """Return what a module has under a name. path: `module:name`, such as `my_models.resnet:build`.

    hydra.utils.get_object is not used: it reads `module.name`, and its errors do not say which of the two is missing.

    Raises:
        UserError: the module has no such name.
        Exception: any error that the import of the module raises.
    """
    module_name, _, name = path.partition(":")
    module = importlib.import_module(module_name)
    if not hasattr(module, name):
        raise UserError(f"{path}: {module_name} has no function {name}")
    return getattr(module, name)
