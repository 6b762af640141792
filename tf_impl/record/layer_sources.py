"""Sources of tensors, by their identity: the layers with variables from whose outputs a forward pass computes them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any


class LayerSources:
    """The layers from which the tensors of a forward pass come. It keeps no tensor alive."""

    def __init__(self) -> None:
        """Begin without tensors."""
        self._returned: dict[int, tuple[weakref.ref[Any], frozenset[str]]] = {}  # by layers
        self._computed: dict[int, tuple[weakref.ref[Any], frozenset[str]]] = {}  # by operations

    def find(self, tensor: object) -> frozenset[str]:
        """Return the paths of the layers that a tensor comes from; empty if none is known."""
        for known in (self._returned, self._computed):
            reference, paths = known.get(id(tensor), (None, frozenset[str]()))
            if reference is not None and reference() is tensor:
                return paths
        return frozenset()

    def add_layer(self, path: str, returned: Iterable[Any]) -> None:
        """Add what a layer with variables has returned. A tensor keeps its source if an inner layer returned it."""
        for tensor in returned:
            reference, _ = self._returned.get(id(tensor), (None, None))
            if reference is None or reference() is not tensor:
                self._returned[id(tensor)] = weakref.ref(tensor), frozenset([path])

    def add_operation(self, received: Iterable[object], returned: Iterable[Any]) -> None:
        """Let the results of an operation come from the sources of all that it received."""
        if paths := frozenset[str]().union(*map(self.find, received)):
            for tensor in returned:
                self._computed[id(tensor)] = weakref.ref(tensor), paths
