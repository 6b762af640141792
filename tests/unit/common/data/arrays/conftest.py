"""A split with every kind of array, and fixtures that write arrays and open their cache."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.data import ArraysSettings
from common.config.schema import Config
from common.data.arrays.array_cache import ArrayCache, open_cache
from tests.conftest import MakeConfig
from tests.unit.common.data.arrays.array_samples import Values, write

Opened = Callable[..., ArrayCache]


def sample(seed: int, count: int) -> dict[str, Any]:
    """Return inputs of every kind and labels of three classes."""
    stream = np.random.default_rng(seed)
    lengths = stream.integers(0, 20, count)
    return {
        "x": stream.standard_normal((count, 3)),
        "image": stream.integers(0, 256, (count, 4, 2, 3)).astype(np.uint8),
        "age": stream.integers(-5, 90, count),
        "big": stream.integers(0, 2**40, (count, 2)),
        "known": stream.random(count) < 0.5,
        "words": [stream.integers(0, 50, length) for length in lengths],
        "track": [stream.standard_normal((length, 2)).astype(np.float32) for length in lengths[::-1]],
        "weight": stream.random(count),
        "labels": np.arange(count) % 3,
    }


@pytest.fixture
def arrays_config(make_config: MakeConfig) -> Callable[..., Config]:
    """Return a function that makes a config of two files."""

    def make(train: str, validation: str, **keys: Any) -> Config:
        config = make_config("data=arrays", "data.train=t", "data.validation=v")
        assert isinstance(config.data, ArraysSettings)
        return replace(config, data=replace(config.data, train=train, validation=validation, **keys))

    return make


@pytest.fixture
def opened(arrays_config: Callable[..., Config], tmp_path: Path) -> Opened:
    """Return a function that writes arrays and opens their cache. By default validation is the same as training."""

    def open_arrays(train: Values, validation: Values | None = None, suffix: str = ".npz", **keys: Any) -> ArrayCache:
        train_at = write(tmp_path, "train", suffix, train)
        validation_at = write(tmp_path, "validation", suffix, train if validation is None else validation)
        return open_cache(arrays_config(train_at, validation_at, **keys), None)

    return open_arrays
