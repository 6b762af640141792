"""Copies of the tensors of a forward pass, up to a number of bytes."""

from __future__ import annotations

import weakref

import numpy as np
import torch

from common.recording.record_writer import SAMPLE_SIZE, Sample, draw_sample
from torch_impl.record.arrays import copy_tensor, name_tensors


class Copies:
    """Copies of tensors up to a number of bytes, after which samples stand for them. A tensor has one copy."""

    def __init__(self, max_bytes: int) -> None:
        """Allow copies of max_bytes."""
        self.remaining_bytes = max_bytes
        self._copies: dict[int, tuple[weakref.ref[torch.Tensor], int, np.ndarray | Sample]] = {}

    def copy(self, tensor: torch.Tensor) -> np.ndarray | Sample:
        """Return a copy of a tensor. Return the same copy again as long as the tensor does not change."""
        reference, version, copy = self._copies.get(id(tensor), (None, None, None))
        if copy is not None and reference is not None and reference() is tensor and version == tensor._version:
            return copy
        array: np.ndarray | Sample = copy_tensor(tensor)
        assert isinstance(array, np.ndarray)
        if array.nbytes > self.remaining_bytes and array.size > SAMPLE_SIZE:
            array = draw_sample(array)
        else:
            self.remaining_bytes -= array.nbytes
        if not tensor.is_inference():
            self._copies[id(tensor)] = weakref.ref(tensor), tensor._version, array
        return array

    def copy_all(self, nested: object) -> dict[str, np.ndarray | Sample]:
        """Return the copies of the tensors in nested containers by name."""
        return {name: self.copy(tensor) for name, tensor in name_tensors(nested)}
