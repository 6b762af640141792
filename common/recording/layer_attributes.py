"""Plain attributes of the layers of a model, which a forward pass may change: hidden states, counters, lists of values.

A forward pass that only shows a recorder what the model computes must leave them as they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

SCALARS = (type(None), bool, int, float, complex, str, bytes, np.generic)
CONTAINERS = (list, dict, set, deque)
MISSING = object()


class LayerAttributes:
    """The attributes that hold numbers, arrays, tensors or containers of them, as they are at one moment."""

    def __init__(
        self,
        layers: Iterable[object],
        ignored: Collection[str],
        tensor_class: type,
        restore_tensor: Callable[[Any], Callable[[], None]],
        list_parts: Callable[[Any], Sequence[object]],
    ) -> None:
        """Keep the attributes.

        Args:
            layers: The layers.
            ignored: The names of attributes that the framework manages.
            tensor_class: The class of tensors.
            restore_tensor: Returns a function that restores the values that a tensor has now.
            list_parts: Returns what a layer consists of. If it changes, the pass has built the layer, which then keeps
                its attributes.
        """
        self._tensor_class, self._restore_tensor, self._list_parts = tensor_class, restore_tensor, list_parts
        self._ignored = ignored
        self._restorers: dict[int, tuple[object, Callable[[], None]]] = {}  # with the object, so that its id is unique
        self._layers = [(layer, list_parts(layer), {*vars(layer)}, self._keep_layer(layer)) for layer in layers]

    def restore(self) -> None:
        """Restore the attributes that have changed, and remove those that were added."""
        for layer, parts, names, attributes in self._layers:
            if not _are_identical(self._list_parts(layer), parts):
                continue
            present = vars(layer)
            for name, value in attributes.items():
                if present.get(name, MISSING) is not value and self._is_plain(present.get(name)):
                    present[name] = value
            for name in [name for name in present if name not in names and name not in self._ignored]:
                if self._is_plain(present[name]):
                    del present[name]
        for _, restore in self._restorers.values():
            restore()

    def _keep_layer(self, layer: object) -> dict[str, object]:
        attributes = {name: value for name, value in vars(layer).items() if name not in self._ignored}
        plain = {name: value for name, value in attributes.items() if self._is_plain(value)}
        for value in plain.values():
            self._keep(value)
        return plain

    def _is_plain(self, value: Any) -> bool:  # noqa: ANN401  whatever the script's layers have
        """Check whether a value is a number, an array, a tensor or a container of them."""
        if isinstance(value, (*SCALARS, np.ndarray, self._tensor_class)):
            return True
        return isinstance(value, (*CONTAINERS, tuple)) and all(map(self._is_plain, _list_members(value)))

    def _keep(self, value: Any) -> None:  # noqa: ANN401  as above
        """Keep what a plain value consists of, if that can change."""
        if isinstance(value, SCALARS) or id(value) in self._restorers:
            return
        if isinstance(value, self._tensor_class):
            restore = self._restore_tensor(value)
        elif isinstance(value, np.ndarray):
            restore = _restore_array(value)
        else:
            restore = self._restore_container(value)
        self._restorers[id(value)] = value, restore
        for member in _list_members(value) if isinstance(value, (*CONTAINERS, tuple)) else ():
            self._keep(member)

    def _restore_container(self, value: Any) -> Callable[[], None]:  # noqa: ANN401  as above
        """Return a function that restores the members of a container."""
        members = dict(value) if isinstance(value, dict) else list(value)

        def restore() -> None:
            is_changed = not _are_identical(_list_members(value), _list_members(members))
            is_changed |= isinstance(value, dict) and list(value) != list(members)
            if isinstance(value, tuple) or not is_changed or not self._is_plain(value):
                return
            value.clear()
            (value.extend if isinstance(value, (list, deque)) else value.update)(members)

        return restore


def _list_members(container: Any) -> list[Any]:  # noqa: ANN401  as above
    return list(container.values() if isinstance(container, dict) else container)


def _are_identical(left: Sequence[object], right: Sequence[object]) -> bool:
    return len(left) == len(right) and all(map(lambda a, b: a is b, left, right))


def _restore_array(array: np.ndarray) -> Callable[[], None]:
    """Return a function that restores the values that an array has now."""
    values = array.copy()

    def restore() -> None:
        if array.flags.writeable:
            array[...] = values

    return restore
