"""Cache of a corpus: its examples as arrays on disk, built once and opened memory-mapped by all processes of a run.

Each kind of data (text, images, named arrays, plain text) has a cache module of its own, which this module calls.
"""

import logging
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from common.config.data import DataSettings
from common.config.schema import Config
from common.data.abbreviation import abbreviate
from common.data.batches import Split
from common.data.tokenizer_source import TokenizerSource
from common.data.transforms.transformed_data import Normalization, check_transforms, transform_data

log = logging.getLogger("lockstep")


@dataclass(frozen=True)
class Cache:
    """An opened cache. Its splits have the transforms of the config."""

    directory: Path
    fingerprint: str  # equal for equal arrays, whichever files they were read from
    train: Split
    validation: Split
    classes: list[str]  # names of the classes; empty if the labels are not classes of examples
    # Arguments of the `normalize` that is added after the user's transforms of images; None to add none.
    normalization: Normalization | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return f"{len(self.train)} training and {len(self.validation)} validation examples"


class _CacheModule(Protocol):
    """Interface of the modules that DataSettings.cache names, one for each kind of data."""

    def open_cache(self, config: Config, source: TokenizerSource | None) -> Cache: ...

    def reopen_cache(self, config: Config, directory: Path) -> Cache: ...


def open_transformed_cache(config: Config, source: TokenizerSource | None) -> Cache:
    """Open and verify the cache of a config. Build the cache first if it is missing or damaged.

    Args:
        config: The config of the run.
        source: Pretrained checkpoint that has the tokenizer and the classes; None for a model with random initial
            weights.

    Raises:
        UserError: If the data is wrong or the cache cannot be written.
    """
    cache = _import_cache_module(config.data).open_cache(config, source)
    if cache.classes and len(cache.train.labels) == len(
        cache.train
    ):  # only the labels of a stream's first examples are known
        _warn_of_unused_classes(cache.train.labels, cache.classes)
    cache = _transform(config, cache)
    check_transforms(cache.train)
    return cache


def reopen_transformed_cache(config: Config, directory: Path) -> Cache:
    """Open a cache that `open_transformed_cache` has built and verified in this or another process.

    No array is read, so the time does not depend on the size of the corpus.

    Raises:
        UserError: If the manifest of the cache cannot be read.
    """
    return _transform(config, _import_cache_module(config.data).reopen_cache(config, directory))


def _transform(config: Config, cache: Cache) -> Cache:
    """Return the cache with the transforms of the config."""
    train, validation = transform_data(config, cache.train, cache.validation, len(cache.classes), cache.normalization)
    return replace(cache, train=train, validation=validation)


def _warn_of_unused_classes(labels: np.ndarray, classes: list[str]) -> None:
    """Log a warning if the training labels are all of one class, or if classes have no training example."""
    counts = np.bincount(labels, minlength=len(classes))
    used = np.count_nonzero(counts)
    if used == 1:
        log.warning(
            "all %d training examples are of class %s: nothing to learn; check data.label (rows with label -1 are "
            "left out)",
            len(labels),
            abbreviate(classes[counts.argmax()]),
        )
    elif used < len(classes):
        unused = [name for name, count in zip(classes, counts, strict=True) if count == 0]
        log.warning(
            "classes without a training example: %s (%d of %d); integer labels count from 0",
            ", ".join(map(repr, unused[:10])) + (", ..." if len(unused) > 10 else ""),
            len(unused),
            len(classes),
        )


def _import_cache_module(data: DataSettings) -> _CacheModule:
    return cast(_CacheModule, import_module(data.cache))
