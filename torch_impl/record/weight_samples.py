"""Samples of the weights after an update, which show whether the script changes the weights before the next update."""

from __future__ import annotations

import torch

SAMPLE_SIZE = 16  # elements of each parameter


class WeightSamples:
    """A few elements of each parameter, as they were after the last update."""

    def __init__(self) -> None:
        self._samples: dict[str, torch.Tensor] = {}

    def take(self, parameters: dict[str, torch.Tensor]) -> None:
        """Copy a few elements of each parameter. parameters: by name."""
        self._samples = {name: _sample(parameter) for name, parameter in parameters.items()}

    def list_changed(self, parameters: dict[str, torch.Tensor]) -> list[str]:
        """Return the names of the parameters whose elements differ from the samples."""
        return [
            name
            for name, parameter in parameters.items()
            if name in self._samples and not _are_equal(_sample(parameter), self._samples[name])
        ]


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Check whether all elements are equal. NaN equals NaN."""
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    values = parameter.detach()
    stride = max(1, values.numel() // SAMPLE_SIZE)
    return values.reshape(-1)[::stride][:SAMPLE_SIZE].clone()
