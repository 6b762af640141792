from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data import plan

counts = st.integers(1, 300)
batch_sizes = st.integers(1, 320)
seeds = st.integers(0, 2**40)


@given(count=counts, size=batch_sizes, seed=seeds, epoch=st.integers(0, 3))
def test_every_example_once_an_epoch(count: int, size: int, seed: int, epoch: int) -> None:
    steps = plan.steps_per_epoch(count, size)
    batches = [plan.example_ids(count, size, seed, epoch * steps + step) for step in range(1, steps + 1)]
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert [len(batch) for batch in batches[:-1]] == [size] * (steps - 1)
    assert len(batches[-1]) == (count % size or min(count, size))


@given(count=counts, size=batch_sizes, seed=seeds, steps=st.lists(st.integers(1, 40), min_size=2, max_size=8))
def test_pure_function_of_the_step(count: int, size: int, seed: int, steps: list[int]) -> None:
    in_this_order = {step: plan.example_ids(count, size, seed, step).tolist() for step in steps}
    plan._order.cache_clear()
    for step in sorted(steps, reverse=True):
        assert plan.example_ids(count, size, seed, step).tolist() == in_this_order[step]


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    orders = {(seed, epoch): tuple(plan.example_ids(100, 100, seed, epoch + 1)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(set(orders.values())) == 4
    assert tuple(range(100)) not in orders.values()


def test_the_order_is_the_same_everywhere() -> None:
    """Written down once: another numpy, machine or release that shuffles otherwise would not continue a run."""
    assert plan.example_ids(10, 4, seed=7, step=1).tolist() == [8, 0, 7, 1]
    assert plan.example_ids(10, 4, seed=7, step=3).tolist() == [5, 9]
    assert plan.example_ids(10, 4, seed=7, step=4).tolist() == [9, 0, 8, 6]


def test_the_order_cannot_be_changed_from_outside() -> None:
    with pytest.raises(ValueError):
        plan.example_ids(10, 4, 0, 1)[0] = 5


@given(size=st.integers(0, 500), world_size=st.integers(1, 64))
def test_shards_partition_the_batch(size: int, world_size: int) -> None:
    bounds = plan.shard_bounds(size, world_size)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, size, world_size + 1)
    sizes = [int(end - start) for start, end in pairwise(bounds)]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
