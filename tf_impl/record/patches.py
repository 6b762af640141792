"""Attributes that are replaced for a while."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import ClassVar

MISSING = object()


class Patches:
    """Replaces attributes of modules, classes and objects, and restores them, in whatever order several of them do."""

    # By the identity of a replacement that was restored while another one had replaced it: it, and what it replaced
    _retired: ClassVar[dict[int, tuple[object, object]]] = {}

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
            if vars(owner).get(name, MISSING) is not replacement:
                self._retired[id(replacement)] = replacement, original
                return
            restored = original
            while id(restored) in self._retired:
                restored = self._retired[id(restored)][1]
            if restored is not MISSING:
                set_attribute(restored)
            elif is_namespace:
                delattr(owner, name)
            else:
                del vars(owner)[name]

        set_attribute(replacement)
        self._undo.append(undo)

    def wrap(self, owner: object, name: str, replacement: Callable[..., object]) -> None:
        """Replace a function or method until `restore`. The replacement receives the original as its first argument."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: object, **kwargs: object) -> object:
            return replacement(original, *args, **kwargs)

        self.replace(owner, name, call)

    def wrap_methods(self, owner: object, names: Iterable[str], replacement: Callable[..., object]) -> None:
        """Replace the methods with these names, as `wrap` does. Skip names that the object lacks."""
        for name in names:
            if hasattr(owner, name):
                self.wrap(owner, name, replacement)

    def restore(self) -> None:
        """Restore the attributes in reverse order."""
        while self._undo:
            self._undo.pop()()
