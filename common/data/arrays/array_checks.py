"""What is wrong with named arrays, found before anything is cached. Errors name the file, the array and the index."""

import math
from collections.abc import Collection, Iterator

import numpy as np

from common.config.data import ArraysSettings
from common.data.arrays.array_files import NamedArrays
from common.data.arrays.column import Column
from common.data.required_columns import show
from common.errors import UserError

BLOCK = 1 << 24  # bytes that are read at once
OWN_NAMES = ("labels", "weights", "dropout_keys", "real_rows")
SORTS = {"f": "floats", "i": "integers", "u": "integers", "b": "bools"}
OTHERS = {"c": "complex", "O": "objects", "U": "text", "S": "text", "V": "records", "M": "times", "m": "times"}


def check_names(data: ArraysSettings, split: NamedArrays) -> list[str]:
    """The names of a split's inputs. Raises UserError where an array is missing, or has a name of Lockstep's own."""
    for key, name in (("label", data.label), ("weight", data.weight)):
        if name is not None and name not in split.columns:
            raise UserError(f"{split.at}: no array {name!r}; set data.{key} to one of {show.repr(list(split.columns))}")
    inputs = [name for name in split.columns if name not in (data.label, data.weight)]
    if not inputs:
        raise UserError(f"{split.at}: no array but {show.repr(list(split.columns))}; add the inputs of the model")
    masks = [f"{name}_mask" for name in inputs if split.columns[name].offsets is not None]
    for name in inputs:
        if name in (*OWN_NAMES, *masks):
            raise UserError(f"{split.at}: {name} is a name that Lockstep gives in batches; rename the array")
    return inputs


def check_sizes(data: ArraysSettings, split: NamedArrays) -> None:
    """Raise UserError unless all arrays are numbers or bools, of the same number of examples."""
    for name, column in split.columns.items():
        values = column.values
        if values.dtype.kind not in SORTS:
            sort = OTHERS.get(values.dtype.kind, str(values.dtype))
            raise UserError(f"{split.at}: {name} is {sort}; use floats, integers or bools, or leave it out")
        if values.ndim == 0:
            raise UserError(f"{split.at}: {name} is a single number; its first axis must be the examples")
    count = len(split.columns[data.label])
    if count == 0:
        raise UserError(f"{split.at}: no examples; choose another file")
    for name, column in split.columns.items():
        if len(column) != count:
            raise UserError(
                f"{split.at}: {name} has {len(column)} examples, but {data.label} has {count}; they must be as many"
            )
        if column.values.size == 0:
            raise UserError(f"{split.at}: {name} has no values; fill it in or leave it out")


def check_alike(train: NamedArrays, validation: NamedArrays) -> None:
    """Raise UserError unless validation has the arrays of training, of the same sorts and shapes of examples."""
    for name in [*train.columns, *validation.columns]:
        for one, other in ((train, validation), (validation, train)):
            if name not in one.columns:
                raise UserError(f"{one.at}: no array {name!r}, which {other.at} has; both must have the same")
    for name, column in train.columns.items():
        expected, found = (
            f"{_sort(each)} of shape {_shape(each.shape)}" for each in (column, validation.columns[name])
        )
        if found != expected:
            raise UserError(f"{validation.at}: {name} has {found} for an example, but in {train.at} {expected}")


def check_weights(at: str, name: str, column: Column) -> None:
    """Raise UserError unless the weights are one for each example, at least 0 and not all 0."""
    if column.shape != ():
        raise UserError(f"{at}: {name} has shape {_shape(column.shape)} for an example; give each example one weight")
    weights = column.values
    negative = np.flatnonzero(weights < 0)
    if len(negative):
        raise UserError(f"{at}: {name}[{negative[0]}] is {weights[negative[0]]:g}; weights must be at least 0")
    if not weights.any():
        raise UserError(f"{at}: {name} is 0 for all examples; give some of them weight")


def check_channels(channels: Collection[str], inputs: dict[str, tuple[str, tuple[int | None, ...]]]) -> None:
    """Raise UserError unless `data.channels` names inputs with at least two axes besides the examples."""
    for name in channels:
        if name not in inputs:
            raise UserError(f"data.channels: no input {name!r}; there are {show.repr(list(inputs))}")
        _, shape = inputs[name]
        if len(shape) < 2:
            raise UserError(
                f"data.channels: {name} has shape {_shape(shape)} for an example; channels need another axis before "
                "them; leave it out"
            )


def find_range(at: str, name: str, values: np.ndarray) -> tuple[int, int]:
    """The least and the largest of integers or bools; (0, 0) of floats, which must be finite. Raises UserError."""
    low, high = [], []
    for start, block in iterate_blocks(values):
        if values.dtype.kind != "f":
            low.append(int(block.min()))
            high.append(int(block.max()))
        elif not (good := np.abs(block) <= np.finfo(np.float32).max).all():
            first = np.argwhere(~good)[0]
            value = block[tuple(first)]
            index = ", ".join(map(str, (start + first[0], *first[1:])))
            remedy = "remove or replace it" if not np.isfinite(value) else "it does not fit float32; scale the array"
            raise UserError(f"{at}: {name}[{index}] is {value:g}; {remedy}")
    return min(low, default=0), max(high, default=0)


def iterate_blocks(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """An array in pieces along its first axis, and where each starts."""
    rows = max(1, BLOCK // max(1, values.itemsize * math.prod(values.shape[1:])))
    for start in range(0, len(values), rows):
        yield start, values[start : start + rows]


def _sort(column: Column) -> str:
    return SORTS[column.values.dtype.kind]


def _shape(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
