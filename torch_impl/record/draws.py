"""The layers of a forward pass whose own code draws random numbers, such as a functional dropout or noise."""

from __future__ import annotations

import hashlib

import torch


class RandomDraws:
    """Watches the state of PyTorch's random generator while a model computes.

    Attributes:
        layers: The paths of the layers whose code has drawn random numbers, in the order of the calls.
        first_state: A hash of the state before the first forward pass; empty before it.
    """

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.first_state = ""
        self._device = torch.device("cpu")
        self._state = torch.empty(0)

    def start(self, model: torch.nn.Module) -> None:
        """Remember the state before a forward pass of a model."""
        self._device = next((parameter.device for parameter in model.parameters()), self._device)
        self._state = self._read_state()
        self.first_state = self.first_state or hashlib.sha256(self._state.numpy().tobytes()).hexdigest()

    def see(self, path: str) -> None:
        """Add the layer `path`, whose code has just run, if the state has changed since the last look at it."""
        state = self._read_state()
        if not torch.equal(state, self._state):
            self._state = state
            self.layers += [] if path in self.layers else [path]

    def _read_state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else torch.get_rng_state()
