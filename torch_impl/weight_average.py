"""Averages of the weights (ema.* or swa.*). The average of a parameter is one more slot of the parameter."""

from collections.abc import Sequence

import torch
from torch.nn import Parameter

from common.config.schema import AVERAGE, Config


class WeightAverage:
    """The averages of some parameters. There are none if the run keeps no average."""

    def __init__(self, config: Config, parameters: Sequence[Parameter]) -> None:
        """Start with the values of the parameters."""
        self.parameters = parameters if AVERAGE in config.slots else []
        self.averages = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, share: float) -> None:
        """Include the weights in the averages after an update. share: the share of these weights in the new average."""
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            average.lerp_(parameter, share)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights and their averages."""
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            weights = parameter.clone()
            parameter.copy_(average)
            average.copy_(weights)
