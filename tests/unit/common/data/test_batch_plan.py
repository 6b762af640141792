"""The batch plan: complete, reproducible and uniformly random."""

import hashlib
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data import batch_plan

counts = st.integers(1, 300)
batch_sizes = st.integers(1, 320)
seeds = st.integers(0, 2**40)


@given(count=counts, size=batch_sizes, seed=seeds, epoch=st.integers(0, 3))
def test_every_example_is_once_in_an_epoch(count: int, size: int, seed: int, epoch: int) -> None:
    steps = batch_plan.steps_per_epoch(count, size)
    batches = [batch_plan.select_example_ids(count, size, seed, epoch * steps + step) for step in range(1, steps + 1)]
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert [len(batch) for batch in batches[:-1]] == [size] * (steps - 1)
    assert len(batches[-1]) == (count % size or min(count, size))


@pytest.mark.slow
@given(count=counts, size=batch_sizes, seed=seeds, steps=st.lists(st.integers(1, 40), min_size=2, max_size=8))
def test_the_plan_is_a_pure_function_of_the_step(count: int, size: int, seed: int, steps: list[int]) -> None:
    expected = {step: batch_plan.select_example_ids(count, size, seed, step).tolist() for step in steps}
    batch_plan._permute_block.cache_clear()
    for step in sorted(steps, reverse=True):
        assert batch_plan.select_example_ids(count, size, seed, step).tolist() == expected[step]


@pytest.mark.slow
@given(seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**20), count=st.integers(1, 3000) | st.just(70_000))
def test_the_order_has_every_id_once(count: int, seed: int, epoch: int) -> None:
    order = batch_plan.permute(count, seed, epoch, np.arange(count))
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))


@pytest.mark.slow
@given(
    count=st.integers(2, 2**50),
    seed=st.integers(0, 2**63 - 1),
    positions=st.lists(st.integers(0, 2**50), min_size=2, max_size=50, unique=True),
)
def test_a_few_ids_of_any_corpus_are_computed_without_the_others(count: int, seed: int, positions: list[int]) -> None:
    requested = np.array(sorted({position % count for position in positions}))
    ids = batch_plan.permute(count, seed, 1, requested)
    assert ((ids >= 0) & (ids < count)).all() and len(set(ids.tolist())) == len(requested)
    assert ids[-1:].tolist() == batch_plan.permute(count, seed, 1, requested[-1:]).tolist()


@pytest.mark.parametrize("size", [7, 4096, 5000, 20_000])
def test_batches_are_cut_from_one_order(size: int) -> None:
    """The blocks that are computed together may end anywhere."""
    batches = [
        batch_plan.select_example_ids(10_000, size, 3, step)
        for step in range(1, batch_plan.steps_per_epoch(10_000, size) + 1)
    ]
    assert np.array_equal(np.concatenate(batches), batch_plan.permute(10_000, 3, 0, np.arange(10_000)))


def test_epochs_and_seeds_have_unrelated_orders() -> None:
    orders = [batch_plan.permute(1000, seed, epoch, np.arange(1000)) for seed in range(4) for epoch in range(4)]
    for a, b in combinations([np.arange(1000), *orders], 2):
        assert (a == b).sum() < 10  # two unrelated orders have on average one id at the same position


def chi_square(observed: np.ndarray) -> float:
    """Return the chi-square statistic of counts that should be equal, in standard deviations from its mean."""
    expected, freedom = observed.mean(), observed.size - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 5, 10, 30, 100, 1000])
def test_ids_and_pairs_of_ids_are_equally_often_at_the_first_positions(count: int) -> None:
    """Over many seeds and epochs."""
    orders = np.array([batch_plan.permute(count, draw // 4, draw % 4, np.arange(3)) for draw in range(2500)])
    for position in range(3):
        assert abs(chi_square(np.bincount(orders[:, position], minlength=count))) < 4
    if count <= 30:  # more counts would leave too few draws for a pair
        pairs = np.bincount(orders[:, 0] * count + orders[:, 1], minlength=count**2).reshape(count, count)
        assert not np.diag(pairs).any()
        assert abs(chi_square(pairs[~np.eye(count, dtype=bool)])) < 4


@pytest.mark.parametrize("count", [4096, 1_000_003, 2**40])
def test_the_first_positions_are_uniform_over_the_corpus(count: int) -> None:
    ids = batch_plan.permute(count, 1, 0, np.arange(4096 if count > 4096 else 1024))
    assert abs(chi_square(np.bincount(ids * 64 // count, minlength=64))) < 4


@pytest.mark.parametrize("count", [10_000, 999_983])
@pytest.mark.parametrize("distance", [1, 2, 3, 32, 100, 1000])
def test_neighbours_are_uncorrelated(count: int, distance: int) -> None:
    ids = batch_plan.permute(count, 0, 0, np.arange(10_000)).astype(float)
    correlation = np.corrcoef(ids[:-distance], ids[distance:])[0, 1]
    assert abs(correlation) * np.sqrt(len(ids) - distance) < 4
    table = np.histogram2d(ids[:-distance], ids[distance:], bins=16, range=[[0, count]] * 2)[0]
    assert abs(chi_square(table)) < 4


def test_the_order_is_the_same_everywhere() -> None:
    """The order of this version of the plan is recorded here. With another order no run could be continued."""
    assert batch_plan.PLAN_VERSION == 2
    assert batch_plan.select_example_ids(10, 4, seed=7, step=1).tolist() == [6, 5, 7, 1]
    assert batch_plan.select_example_ids(10, 4, seed=7, step=3).tolist() == [3, 8]
    assert batch_plan.select_example_ids(10, 4, seed=7, step=4).tolist() == [3, 9, 8, 6]
    assert batch_plan.select_example_ids(10**6, 5, 2**63 - 1, 10**6).tolist() == [
        828973,
        952173,
        280100,
        382037,
        879982,
    ]
    ends = batch_plan.permute(2**50, 1, 3, np.array([0, 1, 2**50 - 1]))
    assert ends.tolist() == [132192780662130, 372778081379974, 296901591982327]
    whole = batch_plan.permute(100_000, 0, 0, np.arange(100_000)).astype("<i8").tobytes()
    assert hashlib.sha256(whole).hexdigest()[:16] == "4d32fae42e4ff206"


def test_the_ids_are_read_only() -> None:
    with pytest.raises(ValueError):
        batch_plan.select_example_ids(10, 4, 0, 1)[0] = 5


@given(size=st.integers(0, 500), world_size=st.integers(1, 64))
def test_shards_partition_the_batch(size: int, world_size: int) -> None:
    bounds = batch_plan.compute_shard_bounds(size, world_size)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, size, world_size + 1)
    sizes = [int(end - start) for start, end in pairwise(bounds)]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(count=st.integers(1, 60), size=st.integers(1, 60))
def test_batches_are_equal_if_all_have_the_same_size(count: int, size: int) -> None:
    steps = range(1, batch_plan.steps_per_epoch(count, size) + 1)
    sizes = {len(batch_plan.select_example_ids(count, size, 0, step)) for step in steps}
    assert batch_plan.has_equal_batches(count, size) == (len(sizes) == 1)
