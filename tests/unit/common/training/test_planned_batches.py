"""Tests of the planned batches, which mark real rows only if some batch has others."""

from types import SimpleNamespace
from typing import Any

import pytest

from common.data.batches import GlobalBatch
from common.training.planned_batches import find_batch
from tests.conftest import MakeSplit


def make_config(**settings: Any) -> Any:
    train = SimpleNamespace(global_batch_size=4, seed=0, padding="global")
    task = SimpleNamespace(label_weights=None, output_weights=None, compares_examples=False)
    model = SimpleNamespace(has_aligned_dropout=False, has_global_batch_norm=settings.get("synchronized", True))
    strategy = SimpleNamespace(world_size=settings.get("world_size", 2))
    return SimpleNamespace(train=train, model=model, task=task, strategy=strategy, micro_batches=1)


def count_rows(batch: GlobalBatch, world_size: int) -> int:
    """Return the number of rows in the shards of all replicas."""
    return sum(len(arrays["labels"]) for rank in range(world_size) for arrays in batch.shard(rank, world_size))


@pytest.mark.parametrize(
    ("count", "settings", "marks"),
    [
        (8, {}, False),
        (10, {}, False),  # the last batch has 2 examples
        (9, {}, True),  # the last batch has 1 example for two replicas
        (9, {"synchronized": False}, False),
        (8, {"world_size": 5}, True),
        (3, {}, False),
        (1, {}, True),
    ],
)
def test_real_rows_are_marked_if_a_batch_is_filled_up(
    make_split: MakeSplit, count: int, settings: dict[str, Any], marks: bool
) -> None:
    config, split = make_config(**settings), make_split([3] * count)
    batches = [find_batch(config, split, number) for number in range(1, -(-count // 4) + 1)]
    assert {batch.mark_real for batch in batches} == {marks}
    if config.model.has_global_batch_norm:
        assert marks == any(count_rows(batch, config.strategy.world_size) > batch.size for batch in batches)
