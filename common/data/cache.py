"""The cache of a corpus: its examples as arrays on disk, built once and opened memory-mapped by a run's processes."""

import logging
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from common.config.data import DataSettings
from common.config.schema import Config
from common.data.batches import Split
from common.data.required_columns import show
from common.data.tokenizer_source import TokenizerSource

log = logging.getLogger("lockstep")


@dataclass(frozen=True)
class Cache:
    """An opened cache. `fingerprint` names its content, whatever the content was read from.

    classes: their names; empty where the labels are not classes of examples.
    """

    directory: Path
    fingerprint: str
    train: Split
    validation: Split
    classes: list[str]

    def __str__(self) -> str:
        return f"{len(self.train)} training and {len(self.validation)} validation examples"


class _CacheModule(Protocol):
    """What the module that a schema names in `cache` has."""

    def open_cache(self, config: Config, source: TokenizerSource | None) -> Cache: ...

    def reopen_cache(self, config: Config, directory: Path) -> Cache: ...


def open_cache(config: Config, source: TokenizerSource | None) -> Cache:
    """Open the cache of a config and verify it. Builds it first where it is missing or damaged. Raises UserError.

    source: the pretrained checkpoint whose tokenizer and classes to use, or None for a model with random initial
    weights.
    """
    cache = _module(config.data).open_cache(config, source)
    if cache.classes:
        _warn_of_classes(cache.train.labels, cache.classes)
    return cache


def reopen_cache(config: Config, directory: Path) -> Cache:
    """Open a cache that `open_cache` has verified. Reads no array, so it takes the same time for every corpus.

    Raises UserError where the cache's manifest cannot be read.
    """
    return _module(config.data).reopen_cache(config, directory)


def _warn_of_classes(labels: np.ndarray, classes: list[str]) -> None:
    """Log a line where the training labels are of one class only, or leave classes without an example."""
    counts = np.bincount(labels, minlength=len(classes))
    used = np.count_nonzero(counts)
    if used == 1:
        log.warning(
            "all %d training examples are of class %s: nothing to learn; check data.label (-1 is no gold label)",
            len(labels),
            show.repr(classes[counts.argmax()]),
        )
    elif used < len(classes):
        unused = [name for name, count in zip(classes, counts, strict=True) if count == 0]
        log.warning(
            "no training example is of class %s, of %d classes; integer labels count from 0",
            ", ".join(map(repr, unused[:10])) + (", ..." if len(unused) > 10 else ""),
            len(classes),
        )


def _module(data: DataSettings) -> _CacheModule:
    return cast(_CacheModule, import_module(data.cache))
