"""What layers receive and return: tensors in nested containers, of either framework."""

from typing import Any


def replace_in_containers(found: Any, old: Any, new: Any) -> Any:
    """Nested lists, tuples and dicts with one object in another's place."""
    if found is old:
        return new
    if type(found) in (list, tuple):
        return type(found)(replace_in_containers(each, old, new) for each in found)
    if type(found) is dict:
        return {name: replace_in_containers(each, old, new) for name, each in found.items()}
    return found
