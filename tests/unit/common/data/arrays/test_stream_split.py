"""Streams: blocks of the training examples, of which a few are on the disk."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.config.schema import Config
from common.data.arrays.array_cache import open_cache
from common.data.arrays.stream_split import StreamSplit
from common.data.batch_plan import select_example_ids
from common.errors import UserError
from tests.conftest import MakeConfig

MODULE = "tests.unit.common.data.arrays.streams_of_users"
Make = Callable[..., Config]


@pytest.fixture
def make_stream(make_config: MakeConfig, tmp_path: Path) -> Make:
    def make(function: str, *overrides: str) -> Config:
        keys = [
            "data.stream=10",
            "data.stream_examples=60",
            "data.classes=[a,b,c]",
            f"cache_dir={tmp_path}",
            f"run_dir={tmp_path}/run",
        ]
        return make_config("data=custom", f"data.read={MODULE}:{function}", *keys, *overrides)

    return make


def test_epoch_has_every_example_once_and_shuffles_within_blocks() -> None:
    for epoch in range(2):
        steps = range(epoch * 9 + 1, epoch * 9 + 10)
        ids = np.concatenate([select_example_ids(60, 7, 3, step, 10) for step in steps])
        assert sorted(ids) == [*range(60)]
        assert [*ids // 10] == [*np.repeat(np.arange(6), 10)]


def test_gathers_the_examples_and_keeps_few_blocks(make_stream: Make, tmp_path: Path) -> None:
    train = open_cache(make_stream("count"), None).train
    for ids in (np.arange(8), np.array([21, 9, 18, 12]), np.arange(35, 45), np.arange(50, 60), np.arange(0, 12)):
        arrays = train.gather(ids, ids)
        assert arrays["x"][:, 0].tolist() == ids.tolist()
        assert arrays["labels"].tolist() == (ids % 3).tolist()
        assert len([path for path in tmp_path.glob("stream-*/block-*") if path.is_dir() and not path.suffix]) <= 4


@pytest.mark.parametrize(
    ("function", "ids", "message"),
    [
        ("end_early", 35, "ended after 33 examples; lower data.stream_examples"),
        ("fail", 25, r"raised OSError: no such shard"),
        ("change_shape", 25, "x"),
        ("become_nan", 25, "x.* is nan"),
        ("unknown_class", 25, "labels has values from 0 to 7"),
    ],
)
def test_bad_blocks_are_refused(make_stream: Make, function: str, ids: int, message: str) -> None:
    train = open_cache(make_stream(function), None).train
    with pytest.raises(UserError, match=message):
        train.gather(np.array([ids]), np.array([ids]))


def test_changed_source_is_refused(make_stream: Make) -> None:
    train = open_cache(make_stream("count"), None).train
    assert isinstance(train, StreamSplit)
    train.begin({"1": "another"})
    with pytest.raises(UserError, match="examples 10 to 19 of train differ"):
        train.gather(np.array([12]), np.array([12]))
