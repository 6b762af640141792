"""The arguments of a layer: their order, and the replacement of an object, such as a tensor, in nested containers."""

import inspect
from collections.abc import Callable
from typing import TypeVar, cast

Nested = TypeVar("Nested")  # a tensor, or lists, tuples and dicts that may contain tensors


def replace_in_containers(nested: Nested, old: object, new: object) -> Nested:
    """Return a copy of nested lists, tuples and dicts in which one object is replaced by another."""
    return cast("Nested", _replace(nested, old, new))


def _replace(nested: object, old: object, new: object) -> object:
    if nested is old:
        return new
    if type(nested) is list:
        return [_replace(item, old, new) for item in nested]
    if type(nested) is tuple:
        return tuple(_replace(item, old, new) for item in nested)
    if type(nested) is dict:
        return {key: _replace(value, old, new) for key, value in nested.items()}
    return nested


def order_arguments(function: Callable[..., object], arguments: dict[str, object]) -> dict[str, object]:
    """Return the keyword arguments of a call in the order of the function's parameters."""
    names = [name for name in inspect.signature(function).parameters if name in arguments]
    return {name: arguments[name] for name in dict.fromkeys([*names, *arguments])}
