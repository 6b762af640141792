"""Attributes that are replaced for a while."""

from __future__ import annotations

import types
from collections.abc import Callable

MISSING = object()


class Patches:
    """Replaces attributes of modules, classes and objects, and restores them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: object, name: str, replacement: object) -> None:
        """Replace an attribute until `restore`. Keras objects do not notice the replacement."""
        getattr(owner, name)  # loads an attribute that a module imports on demand
        original = vars(owner).get(name, MISSING)
        is_namespace = isinstance(owner, (type, types.ModuleType))

        def set_attribute(value: object) -> None:
            if is_namespace:
                setattr(owner, name, value)
            else:
                vars(owner)[name] = value

        def undo() -> None:
            if original is not MISSING:
                set_attribute(original)
            elif is_namespace:
                delattr(owner, name)
            else:
                del vars(owner)[name]

        set_attribute(replacement)
        self._undo.append(undo)

    def restore(self) -> None:
        """Restore the attributes in reverse order."""
        while self._undo:
            self._undo.pop()()
