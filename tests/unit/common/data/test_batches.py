from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from common.data import plan
from common.data.batches import GlobalBatch, evaluation_batches, training_batches
from tests.conftest import MakeSplit

lengths = st.lists(st.integers(2, 40), min_size=1, max_size=30)
world_sizes = st.integers(1, 40)


def batch_of(make_split: MakeSplit, lengths: list[int]) -> GlobalBatch:
    """All the examples of a split in reverse."""
    return GlobalBatch(1, np.arange(len(lengths))[::-1], make_split(lengths))


@given(lengths=lengths, world_size=world_sizes)
def test_the_world_size_changes_only_the_shards(make_split: MakeSplit, lengths: list[int], world_size: int) -> None:
    batch = batch_of(make_split, lengths)
    whole = batch.shard(0, 1)
    shards = [batch.shard(rank, world_size) for rank in range(world_size)]
    for name, expected in whole.items():
        joined = np.concatenate([shard[name] for shard in shards])
        assert joined.dtype == expected.dtype
        assert np.array_equal(joined[: batch.size], expected), name
    assert all(len(shard["labels"]) for shard in shards)


@given(lengths=lengths, world_size=world_sizes)
def test_weights_count_every_example_once(make_split: MakeSplit, lengths: list[int], world_size: int) -> None:
    arrays, _ = batch_of(make_split, lengths).shards(world_size)
    assert arrays["weights"].tolist() == [1.0] * len(lengths) + [0.0] * max(0, world_size - len(lengths))


@given(lengths=lengths, world_size=world_sizes)
def test_a_rank_gets_its_slice_of_the_shards(make_split: MakeSplit, lengths: list[int], world_size: int) -> None:
    batch = batch_of(make_split, lengths)
    arrays, bounds = batch.shards(world_size)
    assert len(bounds) == world_size + 1
    for rank, (start, end) in enumerate(pairwise(bounds)):
        for name, array in batch.shard(rank, world_size).items():
            assert np.array_equal(array, arrays[name][start:end]), name


@given(lengths=lengths)
def test_a_batch_is_as_wide_as_its_longest_example(make_split: MakeSplit, lengths: list[int]) -> None:
    batch, split = batch_of(make_split, lengths), make_split(lengths)
    arrays = batch.shard(0, 1)
    width = arrays["input_ids"].shape[1]
    assert max(lengths) <= width < max(lengths) + 8
    assert batch.tokens == arrays["attention_mask"].sum() == sum(lengths)
    for row, example in enumerate(batch.ids):
        start, end = split.offsets[example : example + 2]
        assert arrays["input_ids"][row].tolist() == [*range(start + 1, end + 1), *[0] * (width - (end - start))]
    assert arrays["labels"].tolist() == split.labels[batch.ids].tolist()
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        "input_ids": "int32",
        "token_type_ids": "int32",
        "attention_mask": "int32",
        "labels": "int32",
        "weights": "float64",
    }


def test_training_batches_follow_the_plan(make_split: MakeSplit) -> None:
    split = make_split([3] * 10)
    batches = list(training_batches(split, 4, 7, range(2, 6)))
    assert [(batch.step, batch.size) for batch in batches] == [(2, 4), (3, 2), (4, 4), (5, 4)]
    assert all(np.array_equal(batch.ids, plan.example_ids(10, 4, 7, batch.step)) for batch in batches)


@given(lengths=lengths, size=st.integers(1, 32))
def test_evaluation_takes_every_example_once_in_order(make_split: MakeSplit, lengths: list[int], size: int) -> None:
    batches = list(evaluation_batches(make_split(lengths), size))
    assert np.concatenate([batch.ids for batch in batches]).tolist() == list(range(len(lengths)))
    assert all(batch.size == size for batch in batches[:-1])
