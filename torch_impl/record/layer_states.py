"""States that recurrent layers receive: those of the batch before, if a model keeps them from call to call."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torch_impl.record.arrays import name_tensors


class LayerStates:
    """The recurrent layers of a forward pass.

    Attributes:
        received: Whether the first call of a layer received a state that is not zero, by the path of the layer.
    """

    def __init__(self) -> None:
        """Begin without layers."""
        self.received: dict[str, bool] = {}

    def see(self, path: str, layer: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Notice a call of the layer `path`. args and kwargs: its arguments, of which `hx` is the state."""
        if isinstance(layer, torch.nn.RNNBase) and path not in self.received:
            state = args[1] if len(args) > 1 else kwargs.get("hx")
            self.received[path] = any(bool(tensor.detach().any()) for _, tensor in name_tensors(state))
