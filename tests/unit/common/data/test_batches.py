"""Global batches: their shards, micro-batches and padding."""

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data import batch_plan
from common.data.batches import MICRO_BATCHES, Arrays, GlobalBatch, evaluation_batches, training_batches
from tests.conftest import MakeSplit

PADDINGS = ("global", "micro_batches", "unpadded")
TOKENS = {"global": 1, "micro_batches": MICRO_BATCHES, "unpadded": 1}  # micro-batches of a shard

lengths = st.lists(st.integers(2, 40), min_size=1, max_size=30)
world_sizes = st.integers(1, 40)
paddings = st.sampled_from(PADDINGS)


def batch_of(make_split: MakeSplit, lengths: list[int], padding: str = "global") -> GlobalBatch:
    """Return all examples of a split in reverse."""
    return GlobalBatch(1, np.arange(len(lengths))[::-1], make_split(lengths), padding)


def examples_of(part: Arrays) -> list[tuple[list[int], list[int], int]]:
    """Return the token ids, types and label of every example with weight, read with the arrays that a model gets."""
    mask = part["attention_mask"] == 1
    ids, types = part["input_ids"], part["token_type_ids"]
    if "places" in part:
        layout = np.zeros((2, mask.size), np.int32)
        layout[:, part["places"]] = ids, types
        ids, types = layout.reshape(2, *mask.shape)
    return [
        (ids[row][mask[row]].tolist(), types[row][mask[row]].tolist(), int(part["labels"][row]))
        for row in np.flatnonzero(part["weights"])
    ]


@pytest.mark.slow
@given(lengths=lengths, world_size=world_sizes, padding=paddings, micro_batches=st.integers(1, 5))
def test_world_size_and_padding_change_only_who_computes_what(
    make_split: MakeSplit, lengths: list[int], world_size: int, padding: str, micro_batches: int
) -> None:
    batch = batch_of(make_split, lengths, padding)
    batch = replace(batch, micro_batches=micro_batches)
    shards = [batch.shard(rank, world_size) for rank in range(world_size)]
    parts = [part for shard in shards for part in shard]
    expected = examples_of(batch_of(make_split, lengths).shard(0, 1)[0])
    assert sorted(example for part in parts for example in examples_of(part)) == sorted(expected)
    assert len(expected) == len(lengths)
    assert all(len(part["labels"]) for part in parts), "no micro-batch is empty"
    assert {len(shard) for shard in shards} == {micro_batches * TOKENS[padding]}
    assert sum(part["weights"].sum() for part in parts) == batch.size


@pytest.mark.slow
@given(count=st.integers(1, 9), world_size=world_sizes)
def test_rows_that_fill_up_are_marked(make_split: MakeSplit, count: int, world_size: int) -> None:
    """Rows are marked even if the examples have no weight."""
    batch = replace(batch_of(make_split, [3] * count), mark_real=True, class_weights=[0.0, 0.0, 0.0])
    parts = [batch.shard(rank, world_size)[0] for rank in range(world_size)]
    assert sum(part["real_rows"].sum() for part in parts) == count
    assert all(part["real_rows"].shape == part["labels"].shape for part in parts)
    real = [example for part in parts for example in part["input_ids"][part["real_rows"] == 1].tolist()]
    assert sorted(real) == sorted(batch.shard(0, 1)[0]["input_ids"].tolist())
    assert {part["real_rows"].dtype for part in parts} == {np.dtype(np.int32)}


@pytest.mark.slow
@given(lengths=lengths, world_size=world_sizes)
def test_shards_cost_about_the_same(make_split: MakeSplit, lengths: list[int], world_size: int) -> None:
    batch = batch_of(make_split, lengths, "unpadded")
    shards = [batch.shard(rank, world_size)[0] for rank in range(world_size)]
    for key, most in (("labels", 1), ("input_ids", max(lengths))):
        sizes = [len(shard[key]) for shard in shards]
        assert max(sizes) - min(sizes) <= most, key


@given(lengths=lengths)
def test_a_batch_is_as_wide_as_its_longest_example(make_split: MakeSplit, lengths: list[int]) -> None:
    batch, split = batch_of(make_split, lengths), make_split(lengths)
    (arrays,) = batch.shard(0, 1)
    width = arrays["input_ids"].shape[1]
    assert max(lengths) <= width < max(lengths) + 8
    assert batch.tokens == arrays["attention_mask"].sum() == sum(lengths)
    order = batch.ids[batch_plan.deal_examples(split.lengths(batch.ids), 1)[0]]
    for row, example in enumerate(order):
        start, end = split.offsets[example : example + 2]
        assert arrays["input_ids"][row].tolist() == [*range(start + 1, end + 1), *[0] * (width - (end - start))]
    assert arrays["labels"].tolist() == split.labels[order].tolist()
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        "input_ids": "int32",
        "token_type_ids": "int32",
        "attention_mask": "int32",
        "labels": "int32",
        "weights": "float64",
    }


@given(lengths=lengths)
def test_an_unpadded_batch_has_no_padding_but_in_attention(make_split: MakeSplit, lengths: list[int]) -> None:
    batch = batch_of(make_split, lengths, "unpadded")
    (arrays,) = batch.shard(0, 1)
    assert len(arrays["input_ids"]) == batch.tokens == arrays["attention_mask"].sum()
    assert arrays["attention_mask"].shape[1] == max(lengths)
    rows, positions = np.divmod(arrays["places"], max(lengths))
    assert positions.tolist() == arrays["position_ids"].tolist()
    assert (np.diff(rows) >= 0).all()
    assert (arrays["position_ids"][arrays["first_tokens"]] == 0).all()
    assert rows[arrays["first_tokens"]].tolist() == list(range(len(lengths)))
    assert {str(array.dtype) for name, array in arrays.items() if name != "weights"} == {"int32"}


@pytest.mark.parametrize("padding", PADDINGS)
def test_micro_batches_have_like_lengths(make_split: MakeSplit, padding: str) -> None:
    batch = batch_of(make_split, [40, 3, 38, 5, 4, 39, 6, 37], padding)
    parts = replace(batch, micro_batches=8 // TOKENS[padding]).shard(0, 1)
    assert [part["attention_mask"].sum() for part in parts] == [40, 39, 38, 37, 6, 5, 4, 3]
    widths = [part["attention_mask"].shape[1] for part in parts]
    assert widths == {"global": [40] * 8, "micro_batches": [40] * 4 + [8] * 4}.get(
        padding, [40, 39, 38, 37, 6, 5, 4, 3]
    )


def test_training_batches_follow_the_plan(make_split: MakeSplit) -> None:
    split = make_split([3] * 10)
    batches = list(training_batches(split, 4, 7, range(2, 6), "global"))
    assert [(batch.step, batch.size) for batch in batches] == [(2, 4), (3, 2), (4, 4), (5, 4)]
    assert all(np.array_equal(batch.ids, batch_plan.select_example_ids(10, 4, 7, batch.step)) for batch in batches)


@given(lengths=lengths, size=st.integers(1, 32))
def test_evaluation_takes_every_example_once_from_the_shortest(
    make_split: MakeSplit, lengths: list[int], size: int
) -> None:
    split = make_split(lengths)
    batches = list(evaluation_batches(split, size, "global"))
    ids = np.concatenate([batch.ids for batch in batches])
    assert sorted(ids.tolist()) == list(range(len(lengths)))
    assert (np.diff(split.lengths(ids)) >= 0).all()
    assert all(batch.size == size for batch in batches[:-1])


def count_instructions(function: Callable[[], object]) -> int:
    """Call a function. Return the number of Python instructions that it executes.

    The garbage collector would add those of finalizers of objects of other tests.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_shard_is_assembled_without_a_loop_over_its_examples(make_split: MakeSplit, padding: str) -> None:
    """A loop in Python would take longer than a step of a small model."""
    batches = [batch_of(make_split, list(range(2, 2 + count)), padding) for count in (8, 200)]
    few, many = (count_instructions(partial(batch.shard, 0, 2)) for batch in batches)
    assert 100 < few == many
