"""Observation of Keras's layers in a ForwardTrace, beside their calls: their activations and dropout functions."""

import sys
from collections.abc import Callable

import numpy as np
import torch

from common.map.keras_attributes import get_keras_kind
from common.map.keras_layers import KNOWN_KINDS, RECURRENT_KINDS
from torch_impl.nested_tensors import replace_first_tensor


class ActivationRecorder:
    """A stand-in for the activation of a layer during a call. It records the input of the activation.

    Attributes:
        received: The input of the activation; None if the layer has no activation.
    """

    def __init__(self, layer: object, replacement: np.ndarray | None = None) -> None:
        """Replace the activation of a layer. replacement: the input of the activation; None keeps the layer's value."""
        self.received: torch.Tensor | None = None
        self._replacement = replacement
        self._attributes = vars(layer)
        self._activation: Callable[[torch.Tensor], torch.Tensor] | None = None
        if get_keras_kind(layer) in KNOWN_KINDS - RECURRENT_KINDS.keys():
            self._activation = self._attributes.get("activation")
        if self._activation is not None:
            self._attributes["activation"] = self._record

    def restore(self) -> torch.Tensor | None:
        """Put the activation back into the layer, and return the input of the activation."""
        if self._activation is not None:
            self._attributes["activation"] = self._activation
        return self.received

    def _record(self, inputs: torch.Tensor) -> torch.Tensor:
        self.received = inputs
        assert self._activation is not None
        return self._activation(replace_first_tensor(inputs, self._replacement))


def patch_keras_dropout(record: Callable[[str], None]) -> Callable[[], None]:
    """Make `keras.random.dropout` drop nothing and call `record`. Return a function that undoes it."""
    random = sys.modules["keras"].random
    original = random.dropout

    def drop(inputs: torch.Tensor, rate: float, *args: object, **kwargs: object) -> torch.Tensor:
        if rate > 0:
            record("dropout")
        return inputs

    random.dropout = drop
    return lambda: setattr(random, "dropout", original)
