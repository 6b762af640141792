"""Checks of named arrays, made before anything is cached. Errors name the file, the array and the index."""

import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from common.config.data import NamedArraysSettings
from common.data.abbreviation import abbreviate
from common.data.arrays.array_files import NamedArrays
from common.data.splits.array_column import Column
from common.errors import UserError

BLOCK = 1 << 24  # bytes of an array that are read at once
RESERVED_NAMES = (
    "labels",
    "weights",
    "dropout_keys",
    "real_rows",
    "class_places",
    "output_places",
    "batch_places",
)  # arrays that Lockstep adds to a batch
NUMBER_KINDS = {"f": "floats", "i": "integers", "u": "integers", "b": "bools"}  # by the kind of NumPy's dtype
OTHER_KINDS = {"c": "complex", "O": "objects", "U": "text", "S": "text", "V": "records", "M": "times", "m": "times"}

InputShapes = dict[str, tuple[str, tuple[int | None, ...]]]  # name of an input -> its type and the shape of an example


def check_names(data: NamedArraysSettings, labels: Mapping[str, str], split: NamedArrays) -> list[str]:
    """Return the names of a split's inputs.

    Args:
        data: Settings of the arrays.
        labels: The config key that names each array of labels, by the name of the array.
        split: The split.

    Raises:
        UserError: If the labels, the weights or all inputs are missing, or an input has a reserved name.
    """
    for name, key in (*labels.items(), (data.weight, "data.weight")):
        if name is not None and name not in split.columns:
            names = abbreviate(list(split.columns))
            raise UserError(f"{split.location}: no array {name!r}; set {key} to one of {names}")
    inputs = [name for name in split.columns if name not in (*labels, data.weight)]
    if not inputs:
        names = abbreviate(list(split.columns))
        raise UserError(f"{split.location}: no array but {names}; add the inputs of the model")
    masks = [f"{name}_mask" for name in inputs if split.columns[name].offsets is not None]
    for name in inputs:
        if name in (*RESERVED_NAMES, *masks):
            raise UserError(f"{split.location}: {name} is a reserved name of batches; rename the array")
    return inputs


def check_sizes(split: NamedArrays, first: str) -> None:
    """Raise UserError unless all arrays are numbers or bools, and have as many examples as the array `first`."""
    for name, column in split.columns.items():
        dtype = column.values.dtype
        if dtype.kind not in NUMBER_KINDS:
            kind = OTHER_KINDS.get(dtype.kind, str(dtype))
            raise UserError(f"{split.location}: {name} is {kind}; use floats, integers or bools, or leave it out")
        if column.values.ndim == 0:
            raise UserError(f"{split.location}: {name} is a single number; its first axis must be the examples")
    count = len(split.columns[first])
    if count == 0:
        raise UserError(f"{split.location}: no examples; choose another file")
    for name, column in split.columns.items():
        if len(column) != count:
            raise UserError(
                f"{split.location}: {name} has {len(column)} examples, but {first} has {count}; make the numbers equal"
            )
        if column.values.size == 0:
            raise UserError(f"{split.location}: {name} has no values; fill it in or leave it out")


def check_alike(train: NamedArrays, validation: NamedArrays) -> None:
    """Raise UserError unless both splits have the same arrays, with the same kinds of numbers and example shapes."""
    for name in [*train.columns, *validation.columns]:
        for split, other in ((train, validation), (validation, train)):
            if name not in split.columns:
                raise UserError(
                    f"{split.location}: no array {name!r}, which {other.location} has; both must have the same"
                )
    for name, column in train.columns.items():
        expected, actual = _describe(column), _describe(validation.columns[name])
        if actual != expected:
            raise UserError(
                f"{validation.location}: {name} has {actual} for an example, but in {train.location} {expected}"
            )


def check_weights(location: str, name: str, column: Column) -> None:
    """Raise UserError unless the weights are one non-negative number for each example, and not all 0."""
    if column.shape != ():
        raise UserError(
            f"{location}: {name} has shape {_format_shape(column.shape)} for an example; give each example one weight"
        )
    weights = column.values
    negative = np.flatnonzero(weights < 0)
    if len(negative):
        raise UserError(f"{location}: {name}[{negative[0]}] is {weights[negative[0]]:g}; weights must be at least 0")
    if not weights.any():
        raise UserError(f"{location}: {name} is 0 for all examples; give some of them weight")


def check_channels(channels: Collection[str], inputs: InputShapes) -> None:
    """Raise UserError unless the inputs with channels exist and have another axis between examples and channels.

    Args:
        channels: `data.channels`, the names of the inputs whose last axis PyTorch's model takes as its second.
        inputs: All inputs.
    """
    for name in channels:
        if name not in inputs:
            raise UserError(f"data.channels: no input {name!r}; there are {abbreviate(list(inputs))}")
        _, shape = inputs[name]
        if len(shape) < 2:
            raise UserError(
                f"data.channels: {name} has shape {_format_shape(shape)} for an example; channels need another axis "
                "before them; leave it out"
            )


def find_range(location: str, name: str, values: np.ndarray, first: int = 0) -> tuple[int, int]:
    """Return the least and the largest of integers or bools; (0, 0) for floats, which must be finite.

    Args:
        location: The name of the split, for errors.
        name: The name of the array.
        values: The array.
        first: The number of its first example, for errors.

    Raises:
        UserError: If a float is not finite or does not fit float32.
    """
    low, high = [], []
    for start, block in iterate_blocks(values):
        if values.dtype.kind != "f":
            low.append(int(block.min()))
            high.append(int(block.max()))
        elif not (is_valid := np.abs(block) <= np.finfo(np.float32).max).all():
            index = np.argwhere(~is_valid)[0]
            value = block[tuple(index)]
            remedy = "remove or replace it" if not np.isfinite(value) else "it does not fit float32; scale the array"
            raise UserError(f"{location}: {name}[{format_index(first + start, index)}] is {value:g}; {remedy}")
    return min(low, default=0), max(high, default=0)


def iterate_blocks(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield an array in blocks along its first axis, with the index at which each block starts."""
    rows = max(1, BLOCK // max(1, values.itemsize * math.prod(values.shape[1:])))
    for start in range(0, len(values), rows):
        yield start, values[start : start + rows]


def format_index(start: int, index: np.ndarray) -> str:
    """Return an index as text, such as "12, 3". Its first number counts from `start` within the block of an array."""
    return ", ".join(map(str, (start + index[0], *index[1:])))


def _describe(column: Column) -> str:
    return f"{NUMBER_KINDS[column.values.dtype.kind]} of shape {_format_shape(column.shape)}"


def _format_shape(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
