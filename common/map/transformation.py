"""The transformation of PyTorch's parameters to a variable of Keras, and back.

A transformation joins one or several parameters, its sources, and applies steps that change the layout. Its text in
tables and map files:

    fc.weight | transpose 1 0
    attention.in_proj_weight[0:16] | transpose 1 0 | reshape 16 4 4
    c_attn.weight | transpose 1 0 | rows 0 16
    gru.bias_ih_l0, gru.bias_hh_l0 | blocks 1 0 2 axis 1
    lstm.bias_ih_l0 + lstm.bias_hh_l0
    lstm.weight_ih_l0 & lstm.weight_hh_l0 axis 1 | blocks 0 2 1 3 | transpose 1 0
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.errors import UserError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class SourceParameter:
    """A PyTorch parameter or buffer, or a range of its rows."""

    name: str
    rows: tuple[int, int] | None = None  # the first row and the row after the last; None for all rows

    def __str__(self) -> str:
        """Return the name and the rows, such as attention.weight[0:8]."""
        return self.name + (f"[{self.rows[0]}:{self.rows[1]}]" if self.rows else "")

    def select(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the parameter's array, or a view of its rows. Raise ValueError if it does not have these rows."""
        return arrays[self.name] if self.rows is None else select_rows(arrays[self.name], self.rows)


@dataclass(frozen=True)
class TransformationStep:
    """One change of an array's layout.

    Attributes:
        kind: "reshape", "transpose", "rows", which selects rows of the first axis, or "blocks", which divides an axis
            into equal blocks and reorders them.
        numbers: The sizes of a reshape, the axes of a transpose, the first row and the row after the last, or the order
            of the blocks.
        axis: The axis that "blocks" divides.
    """

    kind: str
    numbers: tuple[int, ...]
    axis: int = 0

    def __str__(self) -> str:
        """Return the step as a map file has it."""
        numbers = " ".join(map(str, self.numbers))
        return f"{self.kind} {numbers}" + (f" axis {self.axis}" if self.kind == "blocks" else "")

    def apply(self, array: np.ndarray) -> np.ndarray:
        """Return the array after this step. Raise ValueError if its shape does not fit."""
        if self.kind == "reshape":
            return array.reshape(self.numbers)
        if self.kind == "transpose":
            return array.transpose(self.numbers)
        if self.kind == "rows":
            return select_rows(array, self.numbers)
        if sorted(self.numbers) != list(range(len(self.numbers))):
            raise ValueError("not an order of blocks")
        if self.axis >= array.ndim:
            raise ValueError(f"there is no axis {self.axis}")
        blocks = np.split(array, len(self.numbers), self.axis)
        return np.concatenate([blocks[number] for number in self.numbers], self.axis)


@dataclass(frozen=True)
class ParameterTransformation:
    """The sources of a Keras variable in PyTorch, and the steps to its layout.

    Attributes:
        sources: The parameters of PyTorch.
        joined: "" for a single source, "+" if the sources are summed, "," if they are stacked along a new first axis,
            "&" if they are concatenated.
        steps: The steps that follow, in order.
        axis: The axis along which "&" concatenates.
    """

    sources: tuple[SourceParameter, ...]
    joined: str = ""
    steps: tuple[TransformationStep, ...] = ()
    axis: int = 0

    def __str__(self) -> str:
        """Return the transformation as a map file has it."""
        return " | ".join([self.join_sources(), *map(str, self.steps)])

    @property
    def is_sum(self) -> bool:
        """Return whether the Keras variable is the sum of its sources."""
        return self.joined == "+"

    @property
    def selects_rows(self) -> bool:
        """Return whether the Keras variable consists of some rows of a parameter."""
        return any(source.rows for source in self.sources) or any(step.kind == "rows" for step in self.steps)

    def join_sources(self) -> str:
        """Return the sources as text, such as lstm.bias_ih_l0 + lstm.bias_hh_l0."""
        names = {"": "", "+": " + ", ",": ", ", "&": " & "}[self.joined].join(map(str, self.sources))
        return f"{names} axis {self.axis}" if self.joined == "&" else names

    def describe_steps(self) -> str:
        """Return the transformation as text without the names of its sources."""
        joins = {"": [], "+": ["sum"], ",": ["stack"], "&": [f"concatenate axis {self.axis}"]}[self.joined]
        rows = [f"rows {source.rows[0]}:{source.rows[1]}" for source in self.sources if source.rows]
        return ", ".join([*rows, *joins, *map(str, self.steps)]) or "same"

    def to_keras(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the Keras array from PyTorch's arrays by name. Raise ValueError if a step does not fit."""
        source_arrays = [source.select(arrays) for source in self.sources]
        return self._apply_steps(np.sum(source_arrays, axis=0) if self.is_sum else self._join(source_arrays))

    def gradient_to_keras(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the gradient of the Keras array from PyTorch's gradients by name.

        All terms of a sum have the same gradient, which is also the gradient of the sum.
        """
        if not self.is_sum:
            return self.to_keras(arrays)
        return self._apply_steps(self.sources[0].select(arrays))

    def to_torch(self, array: np.ndarray, torch_arrays: Mapping[str, np.ndarray]) -> None:
        """Write a Keras array into PyTorch's arrays, in place.

        Elements that the transformation does not select keep their values. If the arrays are the terms of a sum, the
        first term gets the Keras array, and the others get 0.
        """
        first, *others = [source.select(torch_arrays) for source in self.sources]
        for target in others if self.is_sum else ():
            target[...] = 0
        targets = [first] if self.is_sum else [first, *others]
        # The steps move the index of every element of PyTorch's arrays to its position in the Keras array.
        starts = np.cumsum([0, *(target.size for target in targets)])
        indices = [np.arange(start, start + target.size) for start, target in zip(starts, targets, strict=False)]
        joined = self._join([part.reshape(target.shape) for part, target in zip(indices, targets, strict=True)])
        flat = np.concatenate([target.ravel() for target in targets])
        flat[self._apply_steps(joined).ravel()] = array.ravel()
        for part, target in zip(indices, targets, strict=True):
            target[...] = flat[part].reshape(target.shape)

    def _join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Stack or concatenate arrays, or return a single one. Raise ValueError if their shapes do not fit."""
        if self.joined == "&":
            return np.concatenate(arrays, self.axis)
        return np.stack(arrays) if self.joined else arrays[0]

    def _apply_steps(self, array: np.ndarray) -> np.ndarray:
        for step in self.steps:
            array = step.apply(array)
        return array


def find_unselected(transformations: Iterable[ParameterTransformation], shapes: Mapping[str, Shape]) -> set[str]:
    """Return the names of the parameters that have elements which no transformation selects.

    Args:
        transformations: The transformations.
        shapes: The shapes of the parameters by name.
    """
    selected: dict[str, np.ndarray] = {}
    whole: set[str] = set()
    for transformation in transformations:
        if len(transformation.sources) > 1 or not transformation.selects_rows:
            whole |= {source.name for source in transformation.sources}
            continue
        (source,) = transformation.sources
        mask = selected.setdefault(source.name, np.zeros(math.prod(shapes[source.name]), bool))
        indices = np.arange(mask.size).reshape(shapes[source.name])
        mask[transformation.to_keras({source.name: indices}).ravel()] = True
    return {name for name, mask in selected.items() if name not in whole and not mask.all()}


def transpose_kernel(axes: int) -> TransformationStep:
    """Return the step from (a, b, *window), the layout of PyTorch's kernels, to (*window, b, a), that of Keras's."""
    return TransformationStep("transpose", (*range(2, axes), 1, 0))


def select_rows(array: np.ndarray, rows: tuple[int, ...]) -> np.ndarray:
    """Return a view of rows of the first axis. Raise ValueError if the array does not have them."""
    if array.ndim == 0 or len(rows) != 2 or not rows[0] < rows[1] <= len(array):
        raise ValueError(f"there are no such rows, {' '.join(map(str, rows))}; the shape is {list(array.shape)}")
    return array[rows[0] : rows[1]]


def merge_steps(steps: Sequence[TransformationStep]) -> tuple[TransformationStep, ...]:
    """Return the same steps with transposes that follow each other as one, or as none if they undo each other."""
    merged: list[TransformationStep] = []
    for step in steps:
        if step.kind == "transpose" and merged and merged[-1].kind == "transpose":
            axes = merged.pop().numbers
            step = TransformationStep("transpose", tuple(axes[axis] for axis in step.numbers))
        if step.kind != "transpose" or step.numbers != tuple(range(len(step.numbers))):
            merged.append(step)
    return tuple(merged)


def parse_transformation(text: str) -> ParameterTransformation:
    """Parse the text that `str` of a transformation returns. Raise UserError for other text."""
    first, *steps = (part.strip() for part in text.split("|"))
    joined = next((sign for sign in "+,&" if sign in first), "")
    axis = re.search(r" +axis +(\d{1,2})$", first) if joined == "&" else None
    joined_names = first[: axis.start()] if axis else first
    names = joined_names.split(joined) if joined else [first]
    sources = tuple(_parse_source(name.strip()) for name in names)
    return ParameterTransformation(sources, joined, tuple(map(_parse_step, steps)), int(axis[1]) if axis else 0)


def _parse_source(text: str) -> SourceParameter:
    match = re.fullmatch(r"([^\[\]\s]+)(?:\[(\d+):(\d+)\])?", text)
    if not match:
        raise UserError(f"{text}: not the name of a PyTorch parameter, such as fc.weight or attention.weight[0:8]")
    return SourceParameter(match[1], (int(match[2]), int(match[3])) if match[2] else None)


def _parse_step(text: str) -> TransformationStep:
    match = re.fullmatch(r"(reshape|transpose|rows|blocks)((?: +\d+)+)(?: +axis +(\d+))?", text)
    if not match:
        raise UserError(
            f"{text}: not a step; write 'reshape 4 3', 'transpose 1 0', 'rows 0 8' or 'blocks 1 0 2 axis 1'"
        )
    return TransformationStep(match[1], tuple(map(int, match[2].split())), int(match[3] or 0))
