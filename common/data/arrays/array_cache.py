"""The array cache: a user's named arrays on disk, built once and opened memory-mapped by every process of a run.

A split of n examples has a .npy file for each input of the model, for `labels` and, if `data.weight` is set, for
`weights` float64 [n]. A ragged array, whose examples have different lengths, also has a file of offsets int64 [n + 1].
Floats are stored as float32, and integers as int32, or int64 if they do not fit. uint8 and bool keep their types.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from common.config.data import CustomDataSettings, NamedArraysSettings
from common.config.schema import Config
from common.config.task_kinds import MultiOutputSettings
from common.config.tasks import TaskSettings
from common.data.arrays.array_cache_builder import (
    ArrayManifest,
    build_array_cache,
    get_array_path,
    get_label_name,
)
from common.data.arrays.array_checks import InputShapes, check_channels
from common.data.arrays.array_readers import OFFSETS
from common.data.arrays.stream_block import write_block
from common.data.arrays.stream_split import StreamSplit, check_streamed_arrays
from common.data.atomic_directory import compute_fingerprint, open_or_build, read_manifest
from common.data.cache import Cache
from common.data.identity import identify
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.data.splits.multi_output_split import MultiOutputSplit, split_outputs
from common.data.transforms.transformed_split import get_source

if TYPE_CHECKING:
    from common.data.tokenizer_source import TokenizerSource

FORMAT = 1  # raise it whenever the files change, so that caches of the old format are built again


@dataclass(frozen=True)
class ArrayCache(Cache):
    """An opened array cache."""

    limits: dict[str, int]  # largest value of each integer input, in both splits

    @property
    def inputs(self) -> InputShapes:
        """The type of each input in a batch, and its shape in an example. None: a ragged axis."""
        first, source = np.arange(1), get_source(self.train)
        assert isinstance(source, ArraySplit)
        arrays, shapes = self.train.gather(first, first), self.train.example_shapes
        return {name: (str(arrays[name].dtype), shapes[name]) for name in source.inputs}


def open_cache(config: Config, source: "TokenizerSource | None") -> ArrayCache:
    """Open the array cache of a config. Build the cache first if it is missing or damaged.

    Args:
        config: The config of the run.
        source: Not used, because arrays have no tokenizer.

    Raises:
        UserError: If the arrays are wrong.
    """
    data = config.data
    assert isinstance(data, NamedArraysSettings)
    identity: dict[str, object] = {"format": FORMAT, "corpus": identify(data)}
    labels = config.task.list_labels(data.label)
    if labels != [data.label] or isinstance(config.task, MultiOutputSettings):  # their files have other names
        identity["labels"] = labels
    key = compute_fingerprint(identity)
    directory = Path(config.cache_dir) / f"arrays-{key}"
    cache = _open(
        config, directory, open_or_build(directory, lambda partial: build_array_cache(partial, data, config.task))
    )
    check_channels(data.channels, cache.inputs)
    return cache


def reopen_cache(config: Config, directory: Path) -> ArrayCache:
    """Open the array cache at a path that an earlier `open_cache` has verified.

    Raises:
        UserError: If the manifest cannot be read.
    """
    return _open(config, directory, cast(ArrayManifest, read_manifest(directory)))


def _open(config: Config, directory: Path, manifest: ArrayManifest) -> ArrayCache:
    train = _open_split(directory, "train", manifest["inputs"], config.task)
    if isinstance(config.data, CustomDataSettings) and config.data.stream is not None:
        train = _open_stream(config, directory, manifest, train)
    return ArrayCache(
        directory=directory,
        fingerprint=compute_fingerprint(manifest["checksums"]),
        train=train,
        validation=_open_split(directory, "validation", manifest["inputs"], config.task),
        classes=manifest["classes"],
        limits=manifest["limits"],
    )


def _open_stream(config: Config, directory: Path, manifest: ArrayManifest, first: ArraySplit) -> StreamSplit:
    """Return the training examples of a stream, whose first block is in the cache."""
    data, task, names = config.data, config.task, manifest["inputs"]
    assert isinstance(data, CustomDataSettings) and data.stream is not None and data.stream_examples is not None
    check_streamed_arrays(data, task, first)
    blocks = None
    if config.run_dir is not None:
        run_dir = Path(config.run_dir).expanduser().resolve()
        run = compute_fingerprint({"run_dir": str(run_dir), "cache": directory.name})
        blocks = Path(config.cache_dir) / f"stream-{run}"
    return StreamSplit(
        *(first.inputs, first.label, first.example_weights, first.task),
        directory=blocks,
        count=data.stream_examples,
        block_size=data.stream,
        read_block=partial(write_block, data, task, first, manifest),
        open_block=partial(_open_block, has_weights=first.example_weights is not None, names=names, task=task),
    )


def _open_block(block: Path, has_weights: bool, names: list[str], task: TaskSettings) -> ArraySplit:
    """Open a block of a stream. Raise FileNotFoundError if another process has removed it."""
    opened = _open_split(block, "train", names, task)
    if has_weights and opened.example_weights is None:
        raise FileNotFoundError(block)
    return opened


def _open_split(directory: Path, split: str, names: list[str], task: TaskSettings) -> ArraySplit:
    inputs = {name: _open_column(directory, split, name) for name in names}
    weights = _open_array(get_array_path(directory, split, "weights"))
    if not task.list_labels("labels"):  # a task without labels, such as contrastive, gets labels of 0
        count = len(next(iter(inputs.values())))
        return ArraySplit(inputs, Column(np.zeros(count, np.int32)), weights, task)
    if not isinstance(task, MultiOutputSettings):
        return ArraySplit(inputs, _open_column(directory, split, "labels"), weights, task)
    columns = {name: _open_column(directory, split, get_label_name(task, name)) for name in task.list_labels("")}
    return MultiOutputSplit(inputs, next(iter(columns.values())), weights, task, split_outputs(task, columns))


def _open_column(directory: Path, split: str, name: str) -> Column:
    values, offsets = (_open_array(get_array_path(directory, split, name + suffix)) for suffix in ("", OFFSETS))
    if values is None:
        raise FileNotFoundError(get_array_path(directory, split, name))
    return Column(values, offsets)


def _open_array(file: Path) -> np.ndarray | None:
    """Return a memory-mapped array, or None if the cache has no such file."""
    return np.load(file, mmap_mode="r") if file.exists() else None
