"""Builder of the array cache. Named arrays are checked, then copied block by block.

Both splits are passed together because they must agree in names, shapes and types, and because the largest numbers of
both decide in which type integers are stored.
"""

import logging
import tempfile
from importlib import import_module
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import DTypeLike

from common.config.data import NamedArraysSettings
from common.config.task_kinds import MultiOutputSettings
from common.config.tasks import TaskSettings
from common.data.array_writer import ArrayWriter
from common.data.arrays.array_checks import (
    check_alike,
    check_names,
    check_sizes,
    check_weights,
    find_range,
    iterate_blocks,
)
from common.data.arrays.array_files import NamedArrays
from common.data.arrays.array_labels import list_class_names, select_label_dtype
from common.data.arrays.array_readers import OFFSETS
from common.data.atomic_directory import Manifest
from common.errors import UserError

LABEL_KEY = "data.label"

log = logging.getLogger("lockstep")


class ArrayManifest(Manifest):
    """Manifest of an array cache."""

    inputs: list[str]  # names of the model's inputs
    limits: dict[str, int]  # largest value of each integer input, in both splits
    classes: list[str]  # empty if the labels are not classes of examples


def build_array_cache(directory: Path, data: NamedArraysSettings, task: TaskSettings) -> ArrayManifest:
    """Write the arrays of both splits to the empty directory of a cache.

    Args:
        directory: The directory.
        data: Settings of the arrays.
        task: The task, which names the arrays of labels.

    Raises:
        UserError: If the arrays are wrong.
    """
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        splits = import_module(data.source).read(data, Path(scratch))
        labels = list_label_keys(data, task)
        # The names of validation are only checked: `check_alike` requires that they are the same.
        names, _ = [check_names(data, labels, split) for split in splits]
        first = next(iter((*labels, *names)))
        for split in splits:
            check_sizes(split, first)
        check_alike(*splits)
        log.info("building the array cache of %d examples", sum(len(split.columns[first]) for split in splits))
        ranges = {name: _find_common_range(splits, name) for name in splits[0].columns}
        has_classes = labels == {data.label: LABEL_KEY}
        classes = list_class_names(data, splits, ranges[data.label][1]) if has_classes else []
        limits = {}
        for name in names:
            dtype = _select_dtype(splits, name, *ranges[name])
            if dtype.kind in "iu":
                limits[name] = ranges[name][1]
            _copy(splits, directory, name, name, dtype)
        for name in labels:
            _copy(splits, directory, name, get_label_name(task, name), select_label_dtype(name, splits))
        if data.weight is not None:
            for split in splits:
                check_weights(split.location, data.weight, split.columns[data.weight])
            _copy(splits, directory, data.weight, "weights", np.float64)
        return {"inputs": names, "limits": limits, "classes": classes}


def list_label_keys(data: NamedArraysSettings, task: TaskSettings) -> dict[str, str]:
    """Return the config key that names each array of labels, by the name of the array."""
    if isinstance(task, MultiOutputSettings):
        return {output.label: f"{output.key}.label" for output in task.tasks}
    return dict.fromkeys(task.list_labels(data.label), LABEL_KEY)


def get_label_name(task: TaskSettings, name: str) -> str:
    """Return the name of an array of labels in a cache. Only a task of several outputs has several of them."""
    return f"labels/{name}" if isinstance(task, MultiOutputSettings) else "labels"


def get_array_path(directory: Path, split: str, name: str) -> Path:
    """Return the file of an array in a cache. `quote` makes a file name of any name."""
    return directory / f"{split}.{quote(name, safe='')}.npy"


def _find_common_range(splits: tuple[NamedArrays, NamedArrays], name: str) -> tuple[int, int]:
    """Return the least and the largest integer of an array in both splits; (0, 0) for floats."""
    ranges = [find_range(split.location, name, split.columns[name].values) for split in splits]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _select_dtype(splits: tuple[NamedArrays, NamedArrays], name: str, low: int, high: int) -> np.dtype:
    """Return the type in which the values of an input, from `low` to `high`, are stored."""
    dtypes = {split.columns[name].values.dtype for split in splits}
    kind = next(iter(dtypes)).kind
    if dtypes == {np.dtype(np.uint8)} or kind == "b":
        return dtypes.pop()
    if kind == "f":
        return np.dtype(np.float32)
    for dtype in (np.int32, np.int64):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    raise UserError(
        f"{splits[0].location}: {name} has values up to {high}, which do not fit 64 bits with a sign; leave it out"
    )


def _copy(
    splits: tuple[NamedArrays, NamedArrays], directory: Path, name: str, name_in_cache: str, dtype: DTypeLike
) -> None:
    """Write an array of both splits to the cache, under another name if it is the labels or the weights."""
    for split_name, split in zip(("train", "validation"), splits, strict=True):
        column = split.columns[name]
        with ArrayWriter(
            get_array_path(directory, split_name, name_in_cache), dtype, column.values.shape[1:]
        ) as writer:
            for _, block in iterate_blocks(column.values):
                writer.append(block)
        if column.offsets is not None:
            np.save(get_array_path(directory, split_name, name_in_cache + OFFSETS), column.offsets)
