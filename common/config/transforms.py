"""The form of `data.transforms`: a list of names, and of names with their arguments.

    [{random_crop: 4}, horizontal_flip, {normalize: {mean: [0.5], std: [0.2]}}, "module:function"]

A function of the user that has arguments is {function: {name: "module:function", argument: value}}.
`common.data.transforms` knows the transforms and their arguments.
"""

from collections.abc import Sequence
from typing import Any

from common.errors import UserError

FUNCTION = "function"
CHOICE = "random_choice"  # its first argument, `transforms`, is a list of the same form
FORMS = "a name, {name: argument}, {name: {argument: value}}, module:function or {function: {name: module:function}}"


def parse_transforms(transforms: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the name and the arguments of each transform. The arguments are {} if there are none.

    The name of a function of the user is module:function.

    Raises:
        UserError: An entry has another form.
    """
    return [_parse_transform(entry) for entry in transforms]


def _parse_transform(entry: object) -> tuple[str, Any]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, arguments),) = entry.items()
        if name == FUNCTION and (function := _get_function(arguments)):
            return function, {key: value for key, value in arguments.items() if key != "name"}
        if isinstance(name, str) and ":" not in name and name != FUNCTION and arguments is not None:
            return name, arguments
    raise UserError(f"data.transforms: {entry} is not a transform; use {FORMS}")


def _get_function(arguments: object) -> str:
    """Return the name of a function of the user from its arguments; "" if it has none."""
    name = arguments.get("name") if isinstance(arguments, dict) else None
    return name if isinstance(name, str) and ":" in name else ""


def list_functions(transforms: object) -> list[str]:
    """Return the functions of the user, as module:function, that a value of `data.transforms` names."""
    names: list[str] = []
    for entry in transforms if isinstance(transforms, list) else []:
        arguments = entry.get(CHOICE) if isinstance(entry, dict) else None
        if arguments is not None:
            names += list_functions(arguments.get("transforms") if isinstance(arguments, dict) else arguments)
        name = _get_function(entry.get(FUNCTION)) if isinstance(entry, dict) else entry
        names += [name] if isinstance(name, str) and ":" in name else []
    return names
