"""Samples of the weights after an update, which show whether the script changes the weights before the next update."""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_impl.record.tensors import view_array

SAMPLE_SIZE = 16  # elements of each variable


class WeightSamples:
    """A few elements of each variable, as they were after the last update."""

    def __init__(self) -> None:
        self._samples: dict[str, np.ndarray] = {}

    def take(self, variables: dict[str, Any]) -> None:
        """Copy a few elements of each variable. variables: by name."""
        self._samples = {name: _sample(variable) for name, variable in variables.items()}

    def list_changed(self, variables: dict[str, Any]) -> list[str]:
        """Return the names of the variables whose elements differ from the samples."""
        return [
            name
            for name, variable in variables.items()
            if name in self._samples and not _are_equal(_sample(variable), self._samples[name])
        ]


def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Check whether all elements are equal. NaN equals NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())  # not isnan, because an index has no NaN


def _sample(variable: object) -> np.ndarray:
    values = view_array(variable)
    stride = max(1, values.size // SAMPLE_SIZE)
    return values.reshape(-1)[::stride][:SAMPLE_SIZE].copy()
