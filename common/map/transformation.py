"""How PyTorch's arrays become the array of a Keras variable, and how that becomes PyTorch's again.

A transformation is written as text, in tables and in map files:

    fc.weight | transpose 1 0
    attention.in_proj_weight[0:16] | transpose 1 0 | reshape 16 4 4
    gru.bias_ih_l0, gru.bias_hh_l0 | blocks 1 0 2 axis 1
    lstm.bias_ih_l0 + lstm.bias_hh_l0
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from common.errors import UserError


@dataclass(frozen=True)
class SourceParameter:
    """A torch parameter or buffer, or some of its rows."""

    name: str
    rows: tuple[int, int] | None = None

    def __str__(self) -> str:
        return self.name + (f"[{self.rows[0]}:{self.rows[1]}]" if self.rows else "")

    def of(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Its array, or a view of the rows, along the first axis. Raises ValueError where they are not there."""
        array = arrays[self.name]
        if self.rows is None:
            return array
        start, end = self.rows
        if array.ndim == 0 or not start < end <= len(array):
            raise ValueError(f"{self}: there are no such rows; its shape is {list(array.shape)}")
        return array[start:end]


@dataclass(frozen=True)
class TransformationStep:
    """reshape: to these sizes. transpose: the axes in this order. blocks: equal parts of an axis, in this order."""

    kind: str
    numbers: tuple[int, ...]
    axis: int = 0

    def __str__(self) -> str:
        numbers = " ".join(map(str, self.numbers))
        return f"{self.kind} {numbers}" + (f" axis {self.axis}" if self.kind == "blocks" else "")

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The array after this step. Raises ValueError where it does not fit."""
        if self.kind == "reshape":
            return array.reshape(self.numbers)
        if self.kind == "transpose":
            return array.transpose(self.numbers)
        if sorted(self.numbers) != list(range(len(self.numbers))):
            raise ValueError("not an order of blocks")
        if self.axis >= array.ndim:
            raise ValueError(f"there is no axis {self.axis}")
        parts = np.split(array, len(self.numbers), self.axis)
        return np.concatenate([parts[each] for each in self.numbers], self.axis)


@dataclass(frozen=True)
class ParameterTransformation:
    """From torch sources, which are taken alone, summed ("+") or stacked (","), by steps to a Keras array."""

    sources: tuple[SourceParameter, ...]
    joined: str = ""
    steps: tuple[TransformationStep, ...] = field(default=())

    def __str__(self) -> str:
        joint = {"": "", "+": " + ", ",": ", "}[self.joined]
        return " | ".join([joint.join(map(str, self.sources)), *map(str, self.steps)])

    @property
    def words(self) -> str:
        """The transformation without the names of its sources."""
        ways = {"": [], "+": ["sum"], ",": ["stack"]}[self.joined]
        rows = [f"rows {source.rows[0]}:{source.rows[1]}" for source in self.sources if source.rows]
        return ", ".join([*rows, *ways, *map(str, self.steps)]) or "same"

    def to_keras(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The Keras array of torch arrays by name. Raises ValueError where a step does not fit."""
        taken = [source.of(arrays) for source in self.sources]
        if self.joined == ",":
            return self._steps(np.stack(taken))
        return self._steps(np.sum(taken, axis=0) if self.joined else taken[0])

    def gradient_to_keras(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The gradient of the Keras array from those of the torch arrays. All terms of a sum have the same one."""
        if self.joined != "+":
            return self.to_keras(arrays)
        return self._steps(self.sources[0].of(arrays))

    def to_torch(self, array: np.ndarray, torch: Mapping[str, np.ndarray]) -> None:
        """Write what `to_keras` made back into the torch arrays, in place; of a sum, all into its first term."""
        parts = [source.of(torch) for source in self.sources]
        count = len(parts) if self.joined == "," else 1
        shape = (count, *parts[0].shape) if self.joined == "," else parts[0].shape
        places = self._steps(np.arange(array.size).reshape(shape))
        flat = np.empty(array.size, array.dtype)
        flat[places.ravel()] = array.ravel()
        for number, part in enumerate(parts):
            part[...] = flat.reshape((count, *parts[0].shape))[number] if number < count else 0

    def _steps(self, array: np.ndarray) -> np.ndarray:
        for step in self.steps:
            array = step.apply(array)
        return array


def parse_transformation(text: str) -> ParameterTransformation:
    """Read what `str` of a transformation writes. Raises UserError."""
    first, *rest = (part.strip() for part in text.split("|"))
    joined = "+" if "+" in first else "," if "," in first else ""
    names = first.split(joined) if joined else [first]
    return ParameterTransformation(tuple(_source(name.strip()) for name in names), joined, tuple(map(_step, rest)))


def _source(text: str) -> SourceParameter:
    match = re.fullmatch(r"([^\[\]\s]+)(?:\[(\d+):(\d+)\])?", text)
    if not match:
        raise UserError(f"{text}: not the name of a PyTorch parameter, such as fc.weight or attention.weight[0:8]")
    return SourceParameter(match[1], (int(match[2]), int(match[3])) if match[2] else None)


def _step(text: str) -> TransformationStep:
    match = re.fullmatch(r"(reshape|transpose|blocks)((?: +\d+)+)(?: +axis +(\d+))?", text)
    if not match:
        raise UserError(f"{text}: not a step; write 'reshape 4 3', 'transpose 1 0' or 'blocks 1 0 2 axis 1'")
    return TransformationStep(match[1], tuple(map(int, match[2].split())), int(match[3] or 0))
