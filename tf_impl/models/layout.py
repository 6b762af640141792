"""Parameters in the layouts of both sides: checkpoints and what is compared have PyTorch's."""

from collections.abc import Mapping
from dataclasses import dataclass

import keras
import numpy as np

from common.map.transformations import Transformation


@dataclass(frozen=True)
class NamedParameter:
    """A variable of Keras under its Hugging Face name; `shape` is PyTorch's.

    kernel: (outputs, inputs, *window) of a kernel, which Keras holds as (*window, inputs, outputs); either side may
    merge or split these axes. None where both have the values in the same order: biases, embeddings, LayerNorm.
    """

    name: str
    variable: keras.Variable
    shape: tuple[int, ...]
    kernel: tuple[int, ...] | None

    def to_keras(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """PyTorch's array, by its name among others, as the variable holds it."""
        array = arrays[self.name]
        if self.kernel is not None:
            array = array.reshape(self.kernel).transpose(self._order)
        return array.reshape(self.variable.shape)

    def to_torch(self, array: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
        """Put what `to_keras` made back among PyTorch's arrays."""
        if self.kernel is not None:
            array = array.reshape([self.kernel[axis] for axis in self._order]).transpose(np.argsort(self._order))
        arrays[self.name] = np.ascontiguousarray(array).reshape(self.shape)

    @property
    def _order(self) -> list[int]:
        assert self.kernel is not None
        return [*range(2, len(self.kernel)), 1, 0]


@dataclass(frozen=True)
class TransformedParameter:
    """A variable of a user's model. shapes: of PyTorch's arrays that it is made from, by name."""

    variable: keras.Variable
    transformation: Transformation
    shapes: dict[str, tuple[int, ...]]

    def to_keras(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """PyTorch's arrays as the variable holds them."""
        return self.transformation.to_keras(arrays)

    def to_torch(self, array: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
        """Put what `to_keras` made back among PyTorch's arrays."""
        for name, shape in self.shapes.items():
            if name not in arrays:
                arrays[name] = np.zeros(shape, array.dtype)
        self.transformation.to_torch(array, arrays)
