"""The array cache: named arrays as they are batched, built once and opened memory-mapped by every process of a run.

A split has a file for each input, `labels` and, where `data.weight` is set, `weights` float64 [n]. A ragged array has a
file of offsets int64 [n + 1] too. Floats are float32, integers int32, or int64 where they do not fit; uint8 and bool
stay what they are.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.config.data import ArraysSettings
from common.config.schema import Config
from common.data.arrays.array_cache_builder import build_array_cache, get_array_path
from common.data.arrays.array_checks import check_channels
from common.data.arrays.array_readers import OFFSETS
from common.data.arrays.array_split import ArraySplit
from common.data.arrays.column import Column
from common.data.atomic_directory import compute_fingerprint, open_or_build, read_manifest
from common.data.cache import Cache
from common.data.identity import identify

if TYPE_CHECKING:
    from common.data.tokenizer_source import TokenizerSource

FORMAT = 1


@dataclass(frozen=True)
class ArrayCache(Cache):
    """An opened array cache. limits: the largest value of each integer input."""

    train: ArraySplit
    validation: ArraySplit
    limits: dict[str, int]

    @property
    def inputs(self) -> dict[str, tuple[str, tuple[int | None, ...]]]:
        """Of each input its type in a batch and the shape of an example, where None is a ragged axis."""
        first = np.arange(1)
        return {name: (str(each.gather(first, first).dtype), each.shape) for name, each in self.train.inputs.items()}


def open_cache(config: Config, source: "TokenizerSource | None") -> ArrayCache:
    """Open the array cache of a config, built first where it is missing or damaged. Raises UserError for bad arrays."""
    data = config.data
    assert isinstance(data, ArraysSettings)
    key = compute_fingerprint({"format": FORMAT, "corpus": identify(data)})
    directory = Path(config.cache_dir) / f"arrays-{key}"
    cache = _open(directory, open_or_build(directory, lambda partial: build_array_cache(partial, data)))
    check_channels(data.channels, cache.inputs)
    return cache


def reopen_cache(config: Config, directory: Path) -> ArrayCache:
    """Open an array cache that `open_cache` has verified. Raises UserError where its manifest cannot be read."""
    return _open(directory, read_manifest(directory))


def _open(directory: Path, manifest: dict[str, Any]) -> ArrayCache:
    return ArrayCache(
        directory=directory,
        fingerprint=compute_fingerprint(manifest["checksums"]),
        train=_open_split(directory, "train", manifest["inputs"]),
        validation=_open_split(directory, "validation", manifest["inputs"]),
        classes=manifest["classes"],
        limits=manifest["limits"],
    )


def _open_split(directory: Path, split: str, names: list[str]) -> ArraySplit:
    inputs = {name: _open_column(directory, split, name) for name in names}
    weights = _load(get_array_path(directory, split, "weights"))
    return ArraySplit(inputs, _open_column(directory, split, "labels"), weights)


def _open_column(directory: Path, split: str, name: str) -> Column:
    values, offsets = (_load(get_array_path(directory, split, name + part)) for part in ("", OFFSETS))
    assert values is not None
    return Column(values, offsets)


def _load(file: Path) -> np.ndarray | None:
    """A memory-mapped array; None where the cache has no such file."""
    return np.load(file, mmap_mode="r") if file.exists() else None
