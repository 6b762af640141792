"""Writer of a block of a stream. It checks and stores the examples in the same way as the writer of a cache."""

import tempfile
from pathlib import Path

import numpy as np

from common.config.data import CustomDataSettings
from common.config.tasks import BinarySettings, TaskSettings
from common.data.array_writer import ArrayWriter
from common.data.arrays.array_cache_builder import ArrayManifest, get_array_path
from common.data.arrays.array_checks import check_alike, check_sizes, find_range, iterate_blocks
from common.data.arrays.array_files import NamedArrays, to_named_arrays
from common.data.arrays.user_arrays import read_stream
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.errors import UserError


def write_block(
    data: CustomDataSettings,
    task: TaskSettings,
    first: ArraySplit,
    manifest: ArrayManifest,
    start: int,
    end: int,
    directory: Path,
) -> dict[str, object]:
    """Write the examples from `start` to `end` - 1 to the empty directory of a block.

    Args:
        data: Settings of the data.
        task: The task, which names the array of labels.
        first: The first block. The examples must have its names, shapes and types.
        manifest: The manifest of the cache, which has the first block and validation.
        start: The first example.
        end: The example after the last one.
        directory: The directory.

    Raises:
        UserError: The examples cannot be read, or differ from the first block in names, shapes or types.
    """
    labels = task.list_labels(data.label)
    stored = {**first.inputs, **{name: first.label for name in labels}}
    if data.weight is not None:
        assert first.example_weights is not None
        stored[data.weight] = Column(first.example_weights)
    split = f"data.read={data.read}, train"
    location = f"{split} from example {start}"
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        arrays = read_stream(data, Path(scratch), start, end)
        block, _ = to_named_arrays((location, arrays), (location, arrays))
        columns = {
            name: _convert(column, stored.get(name), name == data.weight) for name, column in block.columns.items()
        }
        block = NamedArrays(location, columns)
        check_alike(NamedArrays("the first block", stored), block)
        check_sizes(block, next(iter(stored)))
        for name, column in block.columns.items():
            values, dtype = column.values, stored[name].values.dtype
            low, high = find_range(split, name, values, start)
            if name in labels:
                _check_labels(location, name, task, values, len(manifest["classes"]))
            elif name == data.weight:
                if (values < 0).any():
                    raise UserError(f"{location}: {name} has a negative weight; weights must be at least 0")
            elif name in manifest["limits"] and high > manifest["limits"][name]:
                raise UserError(
                    f"{location}: {name} has {high}, but the model was checked for values up to "
                    f"{manifest['limits'][name]}, the largest in the first block and in validation; put the largest "
                    "value into the first block, or yield floats"
                )
            if dtype.kind in "iu" and values.dtype.kind in "iu" and low < np.iinfo(dtype).min:
                raise UserError(
                    f"{location}: {name} has {low}, which does not fit {dtype}, the type of the first block"
                )
            stored_name = "labels" if name in labels else "weights" if name == data.weight else name
            with ArrayWriter(get_array_path(directory, "train", stored_name), dtype, values.shape[1:]) as writer:
                for _, part in iterate_blocks(values):
                    writer.append(part)
    return {"start": start, "end": end}


def _convert(column: Column, stored: Column | None, is_weight: bool) -> Column:
    """Return bools, or weights that are integers, as the numbers as which the first block's were stored."""
    if stored is None or column.offsets is not None:
        return column
    is_converted = column.values.dtype.kind == "b" or (is_weight and column.values.dtype.kind in "iu")
    return Column(column.values.astype(stored.values.dtype)) if is_converted else column


def _check_labels(location: str, name: str, task: TaskSettings, values: np.ndarray, classes: int) -> None:
    """Raise UserError if a label is out of the range of the classes, of two classes, or of the type of labels."""
    low, high = values.min(), values.max()
    if classes:
        limits = 0, classes - 1
    elif isinstance(task, BinarySettings):
        limits = 0, 1
    elif values.dtype.kind in "iu":
        limits = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    else:
        return
    if not limits[0] <= low <= high <= limits[1]:
        raise UserError(
            f"{location}: {name} has values from {low:g} to {high:g}, but the task and the first block allow "
            f"{limits[0]} to {limits[1]}; correct them, or set data.classes"
        )
