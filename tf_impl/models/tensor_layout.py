"""Conversion of tensors between Keras's and PyTorch's layout within a step, for optimizers that need PyTorch's."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from typing_extensions import override

from common.config.keras_layout import Shape
from tf_impl.models.layout import NamedParameter, TransformedParameter


@dataclass(frozen=True)
class TensorLayout(ABC):
    """Variables of Keras that together hold some whole parameters of PyTorch: mostly one variable and one parameter.

    Attributes:
        numbers: The indices of the variables among all trained variables.
        variable_shapes: The shapes of the variables.
        shapes: The shapes of PyTorch's parameters that an update changes, by name.
    """

    numbers: list[int]
    variable_shapes: list[Shape]
    shapes: dict[str, Shape]

    @abstractmethod
    def to_torch(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Convert tensors from the layout of the variables to the layout of the parameters."""

    @abstractmethod
    def to_keras(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Convert tensors from the layout of the parameters to the layout of the variables."""


@dataclass(frozen=True)
class TransposedLayout(TensorLayout):
    """A variable that holds one parameter with its axes in another order.

    Attributes:
        axes: The axes of the variable in the order of the parameter.
    """

    axes: list[int]

    @override
    def to_torch(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.reshape(tf.transpose(tensors[0], self.axes), *self.shapes.values())]

    @override
    def to_keras(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        shape = [self.variable_shapes[0][axis] for axis in self.axes]
        return [tf.transpose(tf.reshape(tensors[0], shape), np.argsort(self.axes))]


@dataclass(frozen=True)
class ReorderedLayout(TensorLayout):
    """Variables that hold the elements of some parameters in any order.

    Attributes:
        places: For each element of the variables, its index among the elements of the parameters.
        inverse: For each element of the parameters, its index among the elements of the variables.
    """

    places: tf.Tensor
    inverse: tf.Tensor

    @override
    def to_torch(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return _reorder(tensors, self.inverse, [*self.shapes.values()])

    @override
    def to_keras(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return _reorder(tensors, self.places, self.variable_shapes)


def build_layouts(parameters: Sequence[NamedParameter | TransformedParameter]) -> list[TensorLayout]:
    """Return the layouts of all trained variables. Variables that hold parts of the same parameter share a layout.

    Raises:
        ValueError: Variables do not hold every element of their parameters once. The text names them.
    """
    groups: list[tuple[list[int], set[str]]] = []  # numbers of variables, and names of the parameters that they hold
    for number, parameter in enumerate(parameters):
        numbers, names = [number], {*parameter.updated_shapes}
        separate = []
        for group in groups:
            if group[1].isdisjoint(names):
                separate.append(group)
            else:
                numbers, names = group[0] + numbers, group[1] | names
        groups = [*separate, (numbers, names)]
    return [_build_layout(numbers, parameters) for numbers, _ in groups]


def _build_layout(numbers: list[int], parameters: Sequence[NamedParameter | TransformedParameter]) -> TensorLayout:
    members = [parameters[number] for number in numbers]
    shapes = {name: shape for member in members for name, shape in member.updated_shapes.items()}
    variable_shapes = [tuple(member.variable.shape) for member in members]
    indices = {name: np.zeros(shape, np.int64) for member in members for name, shape in member.shapes.items()}
    start = 0
    for name, shape in shapes.items():
        indices[name] = np.arange(start, start + _count(shape)).reshape(shape)
        start += _count(shape)
    arrays = [member.to_keras(indices) for member in members]
    if len(arrays) == len(shapes) == 1 and (axes := _find_axes(arrays[0], start)) is not None:
        return TransposedLayout(numbers, variable_shapes, shapes, axes)
    places = np.concatenate([array.ravel() for array in arrays])
    if not np.array_equal(np.bincount(places, minlength=start), np.ones(start)):
        paths = " and ".join(member.variable.path for member in members)
        raise ValueError(f"TensorFlow's {paths} does not hold each element of {' and '.join(shapes)} once")
    return ReorderedLayout(numbers, variable_shapes, shapes, tf.constant(places), tf.constant(np.argsort(places)))


def _find_axes(places: np.ndarray, count: int) -> list[int] | None:
    """Return `axes` for which variable.transpose(axes) has the order of the parameter; None if there are none.

    Sort the axes by stride: the distance in the parameter between two neighbors along an axis of the variable.

    Args:
        places: For each element of the variable, its index among the elements of the parameter.
        count: The number of elements of the parameter.
    """
    distances = [places.take(1, axis).flat[0] if size > 1 else 0 for axis, size in enumerate(places.shape)]
    axes = sorted(range(places.ndim), key=lambda axis: -distances[axis])
    return axes if np.array_equal(places.transpose(axes).ravel(), np.arange(count)) else None


def _reorder(tensors: Sequence[tf.Tensor], places: tf.Tensor, shapes: Sequence[Shape]) -> list[tf.Tensor]:
    """Return the elements of tensors at these flat indices, as tensors of these shapes."""
    flat = tf.gather(tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0), places)
    pieces = tf.split(flat, [_count(shape) for shape in shapes])
    return [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _count(shape: Shape) -> int:
    return int(np.prod(shape))
