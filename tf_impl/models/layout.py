"""The parameters of Keras models and their layout in PyTorch, which checkpoints and comparisons use.

A layout is the order of the axes and values of an array: Keras stores kernels with their outputs last, PyTorch first.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import keras
import numpy as np

from common.map.transformation import ParameterTransformation


@dataclass(frozen=True)
class NamedParameter:
    """A variable of a Keras model that holds one parameter of PyTorch.

    Attributes:
        name: The Hugging Face name of the parameter.
        variable: The variable of Keras.
        shape: The shape in PyTorch.
        kernel: The axes (outputs, inputs, *window) of a kernel, which Keras holds as (*window, inputs, outputs);
            either side may merge or split axes. None if both sides hold the values in the same order, as for biases,
            embeddings and LayerNorm.
    """

    name: str
    variable: keras.Variable
    shape: tuple[int, ...]
    kernel: tuple[int, ...] | None

    @property
    def names(self) -> Collection[str]:
        """The names of PyTorch's parameters that the variable holds."""
        return (self.name,)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of PyTorch's parameters that the variable holds, by name."""
        return {self.name: self.shape}

    @property
    def updated_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters that an update of the variable changes, by name."""
        return self.shapes

    def to_keras(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Convert the parameter, found by name among PyTorch's arrays, to the layout of the variable."""
        array = arrays[self.name]
        if self.kernel is not None:
            array = array.reshape(self.kernel).transpose(self._order)
        return array.reshape(self.variable.shape)

    def to_torch(self, array: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
        """Convert an array in the layout of the variable, and add the result to PyTorch's arrays."""
        if self.kernel is not None:
            array = array.reshape([self.kernel[axis] for axis in self._order]).transpose(np.argsort(self._order))
        arrays[self.name] = np.ascontiguousarray(array).reshape(self.shape)

    @property
    def _order(self) -> list[int]:
        """The axes of `kernel` in the order of Keras."""
        assert self.kernel is not None
        return [*range(2, len(self.kernel)), 1, 0]


@dataclass(frozen=True)
class TransformedParameter:
    """A variable of a user's model.

    The parameter map has a transformation that computes the variable from one or more of PyTorch's parameters.

    Attributes:
        variable: The variable of Keras.
        transformation: The transformation.
        shapes: The shapes of the transformation's sources in PyTorch, by name.
    """

    variable: keras.Variable
    transformation: ParameterTransformation
    shapes: dict[str, tuple[int, ...]]

    @property
    def names(self) -> Collection[str]:
        """The names of PyTorch's parameters that the variable holds."""
        return self.shapes

    @property
    def updated_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters that an update changes, by name. Of summed biases it changes only the first."""
        first = self.transformation.sources[0].name
        return {first: self.shapes[first]} if self.transformation.is_sum else self.shapes

    def to_keras(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Convert the parameters, found by name among PyTorch's arrays, to the layout of the variable."""
        return self.transformation.to_keras(arrays)

    def to_torch(self, array: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
        """Convert an array in the layout of the variable, and add the result to PyTorch's arrays."""
        for name, shape in self.shapes.items():
            if name not in arrays:
                arrays[name] = np.zeros(shape, array.dtype)
        self.transformation.to_torch(array, arrays)
