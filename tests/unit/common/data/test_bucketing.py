"""Micro-batches in few shapes: real tokens stay in place."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from common.data.batches import GlobalBatch
from common.data.bucketing import pad_to_bucket
from tests.conftest import MakeSplit

LENGTHS = st.lists(st.integers(3, 128), min_size=1, max_size=40)


@given(lengths=LENGTHS)
def test_the_real_tokens_are_unchanged(make_split: MakeSplit, lengths: list[int]) -> None:
    arrays = make_split(lengths).gather_unpadded(np.arange(len(lengths)))
    padded = pad_to_bucket(arrays)
    tokens, (rows, width) = len(arrays["input_ids"]), arrays["attention_mask"].shape
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert (padded[name][:tokens] == arrays[name]).all() and not padded[name][tokens:].any(), name
    for name in ("first_tokens", "labels"):
        assert (padded[name] == arrays[name]).all(), name
    mask = padded["attention_mask"]
    assert (mask[:rows, :width] == arrays["attention_mask"]).all() and not mask[:rows, width:].any()
    placed = np.full(mask.size, -1)
    placed[padded["places"]] = np.arange(len(padded["places"]))
    before = np.full(rows * width, -1)
    before[arrays["places"]] = np.arange(tokens)
    assert (placed.reshape(mask.shape)[:rows, :width] == before.reshape(rows, width)).all()
    assert ((placed >= 0) == mask.reshape(-1)).all()  # every token has its own place, and the mask has all of them
    assert {name: array.dtype for name, array in padded.items()} == {name: arrays[name].dtype for name in arrays}


@given(lengths=LENGTHS)
def test_little_is_added(make_split: MakeSplit, lengths: list[int]) -> None:
    arrays = make_split(lengths).gather_unpadded(np.arange(len(lengths)))
    padded = pad_to_bucket(arrays)
    assert len(padded["input_ids"]) <= 1.25 * len(arrays["input_ids"])
    assert padded["attention_mask"].shape[1] <= 1.5 * arrays["attention_mask"].shape[1]


def test_the_shapes_are_few(make_split: MakeSplit) -> None:
    stream = np.random.default_rng(0)
    split = make_split(stream.integers(8, 80, 2000).tolist())
    shapes, padded = set(), set()
    for first in range(0, 2000, 16):
        arrays = split.gather_unpadded(np.arange(first, first + 16))
        shapes.add(tuple(array.shape for array in arrays.values()))
        padded.add(tuple(array.shape for array in pad_to_bucket(arrays).values()))
    assert len(shapes) > 100
    assert len(padded) <= 8


def test_padded_text_is_unchanged(make_split: MakeSplit) -> None:
    arrays = GlobalBatch(1, np.arange(4), make_split([5, 2, 9, 7]), "global").shard(0, 1)[0]
    assert pad_to_bucket(arrays) is arrays
