"""The files to which the process of a user's function writes its examples: one for each array, and their names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from common.data.array_writer import ArrayWriter
from common.data.arrays.array_readers import LoadedArrays, open_npy
from common.data.splits.array_column import Column
from common.errors import UserError


def write_examples(examples: Iterator[dict[str, np.ndarray]], location: str, directory: Path, first: int) -> None:
    """Write a file for each array, and one with the lengths of its examples if they have axes.

    first: the number of the first example, for errors.
    """
    writers: dict[str, _ExampleWriter] = {}
    try:
        for number, example in enumerate(examples, first):
            if number == first:
                writers = {name: _ExampleWriter(directory, name, array) for name, array in example.items()}
            if example.keys() != writers.keys():
                raise UserError(
                    f"{location}[{number}]: has {', '.join(example)}, but the first example {', '.join(writers)}"
                )
            for name, array in example.items():
                writers[name].append(f"{location}[{number}]: {name}", array)
    finally:
        for writer in writers.values():
            writer.close()
    if not writers:
        raise UserError(f"{location}: no examples")


class _ExampleWriter:
    """Writer of one array, example by example. Axes after the first must be the same in all of them."""

    def __init__(self, directory: Path, name: str, first: np.ndarray) -> None:
        self.dtype, self.has_axes, self.inner_shape = first.dtype, first.ndim > 0, first.shape[1:]
        index = len(list(directory.glob("*.name")))  # a name may have characters that a file's name cannot have
        (directory / f"{index}.name").write_text(name)
        self.values = ArrayWriter(directory / f"{index}.npy", first.dtype, self.inner_shape)
        self.lengths = ArrayWriter(directory / f"{index}.lengths.npy", np.int64) if self.has_axes else None

    def append(self, location: str, array: np.ndarray) -> None:
        """Write one example. Raise UserError if it does not fit the first one."""
        if (array.ndim > 0, array.shape[1:]) != (self.has_axes, self.inner_shape):
            raise UserError(f"{location}: has shape {list(array.shape)}; only the first axis may differ")
        casting: Literal["safe", "same_kind"] = "same_kind" if self.dtype.kind == "f" else "safe"
        if array.size and not np.can_cast(array.dtype, self.dtype, casting):
            raise UserError(
                f"{location}: is {array.dtype}, but {self.dtype} in the first example; use one type for all"
            )
        values = array if self.has_axes else array[None]
        self.values.append(values.astype(self.dtype))
        if self.lengths is not None:
            self.lengths.append([len(array)])

    def close(self) -> None:
        """Complete the files."""
        for writer in filter(None, (self.values, self.lengths)):
            writer.__exit__(None, None, None)


def open_examples(directory: Path) -> LoadedArrays:
    """Return the arrays of a split by name."""
    arrays: LoadedArrays = {}
    for file in sorted(directory.glob("*.name"), key=lambda path: int(path.stem)):
        name, lengths = file.read_text(), file.with_suffix(".lengths.npy")
        values = open_npy(file.with_suffix(".npy"), name)
        offsets = np.concatenate(([0], np.cumsum(np.load(lengths)))) if lengths.exists() else None
        arrays[name] = values if offsets is None else Column(values, offsets)
    return arrays
