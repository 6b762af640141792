"""Sources of what layers receive, by the identity of the tensors: the layers with variables that returned them."""

from __future__ import annotations

import weakref
from typing import Any


class LayerSources:
    """The layers that returned the tensors of a forward pass. It keeps no tensor alive."""

    def __init__(self) -> None:
        """Begin without tensors."""
        self._paths: dict[int, tuple[weakref.ref[Any], str]] = {}

    def find(self, tensor: object) -> str:
        """Return the path of the layer that a tensor comes from; empty if it is not known."""
        reference, path = self._paths.get(id(tensor), (None, ""))
        return path if reference is not None and reference() is tensor else ""

    def add(self, path: str, returned: Any) -> None:  # noqa: ANN401  a tensor of any framework, or None
        """Add what a layer with variables has returned. It is known already if an inner layer returned it."""
        if returned is not None and not self.find(returned):
            self._paths[id(returned)] = weakref.ref(returned), path
