"""Parameters in the layouts of both sides: checkpoints and what is compared have PyTorch's."""

from dataclasses import dataclass

import keras
import numpy as np


@dataclass(frozen=True)
class Parameter:
    """A variable of Keras under its Hugging Face name; `shape` is PyTorch's.

    kernel: (outputs, inputs, *window) of a kernel, which Keras holds as (*window, inputs, outputs); either side may
    merge or split these axes. None where both have the values in the same order: biases, embeddings, LayerNorm.
    """

    name: str
    variable: keras.Variable
    shape: tuple[int, ...]
    kernel: tuple[int, ...] | None

    def to_keras(self, array: np.ndarray) -> np.ndarray:
        """PyTorch's array as the variable holds it."""
        if self.kernel is not None:
            array = array.reshape(self.kernel).transpose(self._order)
        return array.reshape(self.variable.shape)

    def from_keras(self, array: np.ndarray) -> np.ndarray:
        """What `to_keras` made, as it was."""
        if self.kernel is not None:
            array = array.reshape([self.kernel[axis] for axis in self._order]).transpose(np.argsort(self._order))
        return np.ascontiguousarray(array).reshape(self.shape)

    @property
    def _order(self) -> list[int]:
        assert self.kernel is not None
        return [*range(2, len(self.kernel)), 1, 0]
