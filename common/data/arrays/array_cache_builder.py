"""Building the array cache: named arrays are checked, then copied a block at a time."""

import logging
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import DTypeLike

from common.config.data import ArraysSettings
from common.data.array_writer import ArrayWriter
from common.data.arrays.array_checks import (
    check_alike,
    check_names,
    check_sizes,
    check_weights,
    find_range,
    iterate_blocks,
)
from common.data.arrays.array_files import NamedArrays, read
from common.data.arrays.array_labels import list_class_names, select_label_dtype
from common.data.arrays.array_readers import OFFSETS
from common.errors import UserError

log = logging.getLogger("lockstep")


def build_array_cache(directory: Path, data: ArraysSettings) -> dict[str, Any]:
    """Fill the directory of a cache. Returns the further entries of its manifest. Raises UserError for bad arrays."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        splits = read(data, Path(scratch))
        names, _ = [check_names(data, split) for split in splits]
        for split in splits:
            check_sizes(data, split)
        check_alike(*splits)
        log.info("building the array cache of %d examples", sum(len(split.columns[data.label]) for split in splits))
        ranges = {name: _range(splits, name) for name in splits[0].columns}
        classes = list_class_names(data, splits, ranges[data.label][1])
        limits = {}
        for name in names:
            dtype = _dtype(splits, name, *ranges[name])
            if dtype.kind in "iu":
                limits[name] = ranges[name][1]
            _copy(splits, directory, name, name, dtype)
        _copy(splits, directory, data.label, "labels", select_label_dtype(data.label, splits))
        if data.weight is not None:
            for split in splits:
                check_weights(split.at, data.weight, split.columns[data.weight])
            _copy(splits, directory, data.weight, "weights", np.float64)
        return {"inputs": names, "limits": limits, "classes": classes}


def get_array_path(directory: Path, split: str, name: str) -> Path:
    """Where `build` writes an array of a split, whatever characters are in its name."""
    return directory / f"{split}.{quote(name, safe='')}.npy"


def _range(splits: tuple[NamedArrays, NamedArrays], name: str) -> tuple[int, int]:
    """The least and the largest integer of both splits."""
    ranges = [find_range(split.at, name, split.columns[name].values) for split in splits]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _dtype(splits: tuple[NamedArrays, NamedArrays], name: str, low: int, high: int) -> np.dtype:
    """What the values of an input are stored as."""
    kinds = {split.columns[name].values.dtype for split in splits}
    kind = next(iter(kinds)).kind
    if kinds == {np.dtype(np.uint8)} or kind == "b":
        return kinds.pop()
    if kind == "f":
        return np.dtype(np.float32)
    for dtype in (np.int32, np.int64):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    raise UserError(
        f"{splits[0].at}: {name} has values up to {high}, which do not fit 64 bits with a sign; leave it out"
    )


def _copy(splits: tuple[NamedArrays, NamedArrays], directory: Path, name: str, written: str, dtype: DTypeLike) -> None:
    for key, split in zip(("train", "validation"), splits, strict=True):
        column = split.columns[name]
        with ArrayWriter(get_array_path(directory, key, written), dtype, column.values.shape[1:]) as writer:
            for _, block in iterate_blocks(column.values):
                writer.append(block)
        if column.offsets is not None:
            np.save(get_array_path(directory, key, written + OFFSETS), column.offsets)
