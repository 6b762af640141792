"""Shards that are computed while the steps before them run."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from common.data.batches import Arrays, GlobalBatch
from common.errors import UserError
from common.training.look_ahead import open_batches
from tests.conftest import MakeConfig
from tests.unit.common.data.transforms.samples import COUNT, IMAGE_SPLIT, transformed


def shard_as_caller(batches: Iterator[GlobalBatch]) -> list[tuple[list[Arrays], list[Arrays]]]:
    return [(batch.shard(0, 2), batch.shard(1, 2)) for batch in batches]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that have computed a shard, in order."""
    names: list[str] = []
    shard = GlobalBatch.shard

    def record(batch: GlobalBatch, *arguments: int) -> list[Arrays]:
        names.append(threading.current_thread().name)
        return shard(batch, *arguments)

    monkeypatch.setattr(GlobalBatch, "shard", record)
    return names


def test_only_the_first_shards_are_computed_by_the_caller(make_config: MakeConfig, threads: list[str]) -> None:
    config = make_config("model=convnet", "train.global_batch_size=7")
    main = threading.current_thread().name
    with open_batches(config, transformed("horizontal_flip"), range(3, 9)) as batches:
        ahead = shard_as_caller(batches)
    assert len(threads) == 12
    assert threads.count(main) <= 4
    for thread in threading.enumerate():
        if thread.name.startswith("look-ahead"):
            thread.join(60)
            assert not thread.is_alive()
    with open_batches(config, transformed("horizontal_flip"), range(3, 9)) as batches:
        expected = [(batch.divide(1)[0].shard(0, 2), batch.divide(1)[0].shard(1, 2)) for batch in batches]
    for pair, expected_pair in zip(ahead, expected, strict=True):
        for (arrays,), (expected_arrays,) in zip(pair, expected_pair, strict=True):
            assert all(np.array_equal(arrays[name], expected_arrays[name]) for name in expected_arrays)


def test_parts_of_a_batch_are_other_shards(make_config: MakeConfig) -> None:
    config = make_config("model=convnet", f"train.global_batch_size={COUNT}")
    with open_batches(config, transformed("horizontal_flip"), range(1, 5)) as batches:
        for batch in batches:
            batch.shard(0, 1)
            assert [len(part.shard(0, 1)[0]["labels"]) for part in batch.divide(2)] == [12, 12]


def test_an_error_of_the_thread_reaches_the_caller(make_config: MakeConfig) -> None:
    split = transformed("horizontal_flip")
    config = make_config("model=convnet", "train.global_batch_size=7")
    with open_batches(config, split, range(1, 5)) as batches:
        shard_as_caller(iter([next(batches)]))
        split.specs["images"] = ((1, 1, 1), np.dtype(np.float32))  # type: ignore[index]  # a dict
        with pytest.raises(UserError, match=r"^data.transforms: images becomes float32 \[1, 1, 1\] in the first"):
            shard_as_caller(batches)


def test_examples_without_transforms_need_no_thread(make_config: MakeConfig, threads: list[str]) -> None:
    with open_batches(make_config("model=convnet"), IMAGE_SPLIT, range(1, 5)) as batches:
        shard_as_caller(batches)
    assert set(threads) == {threading.current_thread().name}
