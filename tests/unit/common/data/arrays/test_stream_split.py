"""Streams: blocks of the training examples, of which a few are on the disk."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.config.data import CustomDataSettings
from common.config.schema import Config
from common.data import atomic_directory
from common.data.arrays import user_arrays
from common.data.arrays.array_cache import open_cache
from common.data.arrays.stream_split import StreamSplit
from common.data.batch_plan import select_example_ids
from common.data.splits.array_split import ArraySplit
from common.errors import UserError
from tests.conftest import MakeConfig

pytestmark = pytest.mark.slow

MODULE = "tests.unit.common.data.arrays.streams_of_users"
Make = Callable[..., Config]


@pytest.fixture(autouse=True)
def _read_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read blocks in this process, except in one test: a process for each block takes 0.5 s to start."""

    def read_here(data: CustomDataSettings, scratch: Path, ranges: user_arrays.Ranges) -> None:
        if (problem := user_arrays.write_splits(data, scratch, ranges)) is not None:
            raise UserError(problem)

    if request.function is not test_gathers_two_epochs_of_few_blocks:
        monkeypatch.setattr(user_arrays, "_run", read_here)


@pytest.fixture
def make_stream(make_config: MakeConfig, tmp_path: Path) -> Make:
    def make(function: str, *overrides: str) -> Config:
        keys = ["data.stream=10", "data.stream_examples=60", "data.classes=[a,b,c]", "train.global_batch_size=8"]
        paths = [f"cache_dir={tmp_path}", f"run_dir={tmp_path}/run"]
        return make_config("data=custom", f"data.read={MODULE}:{function}", *keys, *paths, *overrides)

    return make


def _open(config: Config) -> StreamSplit:
    train = open_cache(config, None).train
    assert isinstance(train, StreamSplit)
    return train


@pytest.mark.parametrize(("count", "blocks"), [(60, 6), (35, 4), (21, 3), (11, 2)])
def test_epoch_has_every_example_once_and_shuffles_within_blocks(count: int, blocks: int) -> None:
    per_epoch = -(-count // 7)
    orders = []
    for epoch in range(2):
        steps = range(epoch * per_epoch + 1, (epoch + 1) * per_epoch + 1)
        ids = np.concatenate([select_example_ids(count, 7, 3, step, 10) for step in steps])
        assert sorted(ids) == [*range(count)]
        assert [*ids // 10] == [*np.repeat(np.arange(blocks), 10)[:count]]
        orders.append([*ids])
    assert orders[0] != orders[1]


@pytest.mark.parametrize("count", [15, 25, 40])
def test_gathers_two_epochs_of_few_blocks(make_stream: Make, tmp_path: Path, count: int) -> None:
    train = _open(make_stream("count", f"data.stream_examples={count}"))
    for step in range(1, 2 * -(-count // 8) + 1):
        ids = select_example_ids(count, 8, 3, step, 10)
        arrays = train.gather(ids, ids)
        assert arrays["x"][:, 0].tolist() == ids.tolist()
        assert arrays["labels"].tolist() == (ids % 3).tolist()
        assert len([path for path in tmp_path.glob("stream-*/block-*") if path.is_dir() and not path.suffix]) <= 4
    assert train.directory is not None
    with train.open_blocks({}):
        assert [path.name for path in train.directory.iterdir() if path.suffix != ".lock"] == ["checksums.json"]
        train.gather(np.array([12]), np.array([12]))
    assert not train.directory.exists()


def test_two_runs_cannot_use_one_directory(make_stream: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts may share a cache directory and have run directories with the same path."""
    monkeypatch.setattr(atomic_directory, "LOCK_SECONDS", 0.1)
    first, second = (_open(make_stream("count")) for _ in range(2))
    with first.open_blocks({}):
        first.gather(np.array([12]), np.array([12]))
        with pytest.raises(UserError, match="another run, whose run_dir has the same path"), second.open_blocks({}):
            pass
        assert first.directory is not None and (first.directory / "block-1").exists()
    with second.open_blocks({}):
        second.gather(np.array([12]), np.array([12]))


def test_lock_files_do_not_accumulate(make_stream: Make) -> None:
    train = _open(make_stream("count", "data.stream_examples=400"))
    assert train.directory is not None
    with train.open_blocks({}):
        for number in range(1, 40):
            (train.directory / f"block-{number}.lock").touch()
        train.gather(np.array([205]), np.array([205]))
        assert len([*train.directory.glob("block-*.lock")]) == 17


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("ignore_start", r"with start=6 it yields other examples than number 6 .*labels differs|x differs"),
        ("lack_start", r"needs a function with the argument start=0"),
        ("CODE", r"train: raised TypeError"),
    ],
)
def test_functions_that_do_not_start_there_are_refused(make_stream: Make, function: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        _open(make_stream(function))


@pytest.mark.parametrize(
    ("function", "ids", "message"),
    [
        ("end_early", 35, "ended after 33 examples; lower data.stream_examples"),
        ("fail", 25, r"train\[27\]: raised OSError: no such shard"),
        ("yield_text", 25, r"train\[27\]: x is an array of <U"),
        ("change_shape", 25, r"x has floats of shape \(3\)"),
        ("become_nan", 25, r"train: x\[26, 0\] is nan"),
        ("unknown_class", 25, "labels has values from 0 to 7"),
        ("unknown_word", 25, "x has 24, but the model was checked for values up to 9"),
        ("lose_array", 25, "no array 'x', which the first block has"),
    ],
)
def test_bad_blocks_are_refused(make_stream: Make, function: str, ids: int, message: str) -> None:
    train = _open(make_stream(function))
    with pytest.raises(UserError, match=message):
        train.gather(np.array([ids]), np.array([ids]))


def test_bools_and_integer_weights_are_stored_as_those_of_the_first_block(make_stream: Make) -> None:
    train = _open(make_stream("count_bools", "task=binary", "data.weight=w", "data.classes=null"))
    ids = np.array([12, 13, 25])
    arrays = train.gather(ids, ids)
    assert arrays["labels"].tolist() == [0, 1, 1]
    assert train.weights(ids).tolist() == [1.0, 2.0, 2.0]


def test_block_that_another_process_removes_is_read_again(make_stream: Make) -> None:
    train = _open(make_stream("count_bools", "task=binary", "data.weight=w", "data.classes=null"))
    assert train.open_block is not None
    open_block = train.open_block
    removed: list[Path] = []

    def remove_and_open(block: Path) -> ArraySplit:
        if not removed:
            removed.append(block)
            block.rename(block.with_suffix(".removed"))
        return open_block(block)

    train = replace(train, open_block=remove_and_open)
    ids = np.array([12, 13])
    assert train.gather(ids, ids)["labels"].tolist() == [0, 1] and len(removed) == 1
    assert train.weights(ids).tolist() == [1.0, 2.0]


def test_block_that_differs_from_that_of_the_checkpoint_is_refused(make_stream: Make) -> None:
    train = _open(make_stream("count"))
    with (
        train.open_blocks({"1": "another"}),
        pytest.raises(UserError, match="examples 10 to 19 of train differ"),
    ):
        train.gather(np.array([12]), np.array([12]))


def test_runs_have_blocks_of_their_own(make_stream: Make, tmp_path: Path) -> None:
    directories = {_open(make_stream("count", f"run_dir={tmp_path}/{name}")).directory for name in "ab"}
    assert len(directories) == 2
    outside = _open(make_stream("count", "run_dir=null"))
    with pytest.raises(UserError, match="only training reads the examples after the first block"):
        outside.gather(np.array([12]), np.array([12]))
