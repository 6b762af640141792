"""The layout of a PyTorch parameter in Keras, for optimizers whose update depends on the order of the axes.

Keras's Adafactor averages over the last two axes of a variable, and its Muon updates variables of two axes. Keras holds
a kernel with its outputs last, PyTorch with its outputs first.
"""

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

Shape = tuple[int, ...]
Array = Any  # a tensor or an array; the frameworks share no type


@dataclass(frozen=True)
class LayoutStep:
    """One change of the order of an array's elements.

    Attributes:
        kind: "reshape", "transpose", or "blocks", which divides an axis into equal blocks and reorders them.
        numbers: The sizes of a reshape, the axes of a transpose, or the order of the blocks.
        axis: The axis that "blocks" divides.
    """

    kind: str
    numbers: Shape
    axis: int = 0

    def find_shape(self, shape: Shape) -> Shape:
        """Return the shape after this step of an array with a shape."""
        if self.kind == "reshape":
            return self.numbers
        return tuple(shape[axis] for axis in self.numbers) if self.kind == "transpose" else shape

    def invert(self, shape: Shape) -> "LayoutStep":
        """Return the inverse of this step. shape: the shape of the array before this step."""
        if self.kind == "reshape":
            return LayoutStep("reshape", shape)
        order = range(len(self.numbers))
        return LayoutStep(self.kind, tuple(sorted(order, key=self.numbers.__getitem__)), self.axis)

    def apply(self, xp: ModuleType, array: Array) -> Array:
        """Return an array after this step. xp: torch, tensorflow or numpy."""
        if self.kind == "reshape":
            return xp.reshape(array, self.numbers)
        if self.kind == "transpose":
            return (xp.permute if hasattr(xp, "permute") else xp.transpose)(array, self.numbers)
        size = array.shape[self.axis] // len(self.numbers)
        leading = (slice(None),) * self.axis
        blocks = [array[(*leading, slice(number * size, (number + 1) * size))] for number in self.numbers]
        return (xp.concat if hasattr(xp, "concat") else xp.concatenate)(blocks, self.axis)


@dataclass(frozen=True)
class KerasLayout:
    """The steps from the layout of a parameter in PyTorch to the layout of its variable in Keras."""

    steps: tuple[LayoutStep, ...]

    def find_shape(self, shape: Shape) -> Shape:
        """Return the shape in Keras. shape: the shape in PyTorch."""
        for step in self.steps:
            shape = step.find_shape(shape)
        return shape

    def to_keras(self, xp: ModuleType, array: Array) -> Array:
        """Convert an array from PyTorch's layout. xp: torch, tensorflow or numpy."""
        for step in self.steps:
            array = step.apply(xp, array)
        return array

    def to_torch(self, xp: ModuleType, array: Array, shape: Shape) -> Array:
        """Convert an array from Keras's layout. shape: the shape in PyTorch."""
        inverse = []
        for step in self.steps:
            inverse.append(step.invert(shape))
            shape = step.find_shape(shape)
        for step in reversed(inverse):
            array = step.apply(xp, array)
        return array


@cache
def parse_layout(text: str) -> KerasLayout:
    """Parse steps such as "reshape 4 3 2 2 | transpose 2 3 1 0" or "blocks 1 0 2 axis 1", as a map file has them."""
    steps = []
    for part in text.split("|"):
        kind, *numbers = part.partition(" axis ")[0].split()
        steps.append(LayoutStep(kind, tuple(map(int, numbers)), int(part.partition(" axis ")[2] or 0)))
    return KerasLayout(tuple(steps))
