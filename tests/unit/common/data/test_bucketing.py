"""Micro-batches in few shapes: what is real stays where it is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from common.data.batches import GlobalBatch
from common.data.bucketing import pad_to_bucket
from tests.conftest import MakeSplit

LENGTHS = st.lists(st.integers(3, 128), min_size=1, max_size=40)


@given(lengths=LENGTHS)
def test_the_real_tokens_are_as_they_were(make_split: MakeSplit, lengths: list[int]) -> None:
    part = make_split(lengths).gather_unpadded(np.arange(len(lengths)))
    rounded = pad_to_bucket(part)
    tokens, (rows, width) = len(part["input_ids"]), part["attention_mask"].shape
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert (rounded[name][:tokens] == part[name]).all() and not rounded[name][tokens:].any(), name
    for name in ("first_tokens", "labels"):
        assert (rounded[name] == part[name]).all(), name
    mask = rounded["attention_mask"]
    assert (mask[:rows, :width] == part["attention_mask"]).all() and not mask[:rows, width:].any()
    placed = np.full(mask.size, -1)
    placed[rounded["places"]] = np.arange(len(rounded["places"]))
    before = np.full(rows * width, -1)
    before[part["places"]] = np.arange(tokens)
    assert (placed.reshape(mask.shape)[:rows, :width] == before.reshape(rows, width)).all()
    assert ((placed >= 0) == mask.reshape(-1)).all()  # each token has a place of its own, and the mask knows all
    assert {name: array.dtype for name, array in rounded.items()} == {name: part[name].dtype for name in part}


@given(lengths=LENGTHS)
def test_little_is_added(make_split: MakeSplit, lengths: list[int]) -> None:
    part = make_split(lengths).gather_unpadded(np.arange(len(lengths)))
    rounded = pad_to_bucket(part)
    assert len(rounded["input_ids"]) <= 1.25 * len(part["input_ids"])
    assert rounded["attention_mask"].shape[1] <= 1.5 * part["attention_mask"].shape[1]


def test_the_shapes_are_few(make_split: MakeSplit) -> None:
    stream = np.random.default_rng(0)
    split = make_split(stream.integers(8, 80, 2000).tolist())
    shapes, rounded = set(), set()
    for first in range(0, 2000, 16):
        part = split.gather_unpadded(np.arange(first, first + 16))
        shapes.add(tuple(array.shape for array in part.values()))
        rounded.add(tuple(array.shape for array in pad_to_bucket(part).values()))
    assert len(shapes) > 100
    assert len(rounded) <= 8


def test_padded_text_is_as_it_was(make_split: MakeSplit) -> None:
    part = GlobalBatch(1, np.arange(4), make_split([5, 2, 9, 7]), "global").shard(0, 1)[0]
    assert pad_to_bucket(part) is part
