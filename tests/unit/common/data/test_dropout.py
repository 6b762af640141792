"""Aligned dropout: its keys, and the randomness of its masks."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from common.data.batches import evaluation_batches, training_batches
from common.data.dropout import compute_threshold, derive_example_keys, derive_site_key, to_signed
from tests.conftest import MakeSplit
from tests.unit import reference_dropout

RATE = 0.1


@given(seed=st.integers(0, 2**63 - 1), step=st.integers(1, 2**40), ids=st.lists(st.integers(0, 2**40), max_size=9))
def test_the_keys_match_the_reference(seed: int, step: int, ids: list[int]) -> None:
    keys = derive_example_keys(seed, step, np.array(ids, np.int64))
    assert keys.dtype == np.int64
    assert [int(key) for key in keys.view(np.uint64)] == [
        int(reference_dropout.example_key(seed, step, example)) for example in ids
    ]


def test_keys_belong_to_examples_in_all_shards(make_split: MakeSplit) -> None:
    split = make_split(list(range(3, 40)))
    for step, batch in enumerate(training_batches(split, 8, 5, range(6, 10), "unpadded", aligned_dropout=True), 6):
        expected = dict(zip(batch.ids.tolist(), derive_example_keys(5, step, batch.ids), strict=True))
        lengths = dict(zip(split.lengths(batch.ids).tolist(), batch.ids.tolist(), strict=True))
        for world_size in (1, 3):
            seen = 0
            for rank in range(world_size):
                for part in batch.shard(rank, world_size) + batch.divide(2)[0].shard(rank, world_size):
                    for key, length in zip(part["dropout_keys"], part["attention_mask"].sum(1), strict=True):
                        assert key == expected[lengths[int(length)]]
                        seen += 1
            assert seen == 12
    assert all(
        "dropout_keys" not in part
        for batch in training_batches(split, 8, 5, range(1, 3), "global")
        for part in batch.shard(0, 1)
    )
    assert all("dropout_keys" in batch.shard(0, 1)[0] for batch in evaluation_batches(split, 8, "global", True))


def test_signed_words_keep_their_order() -> None:
    assert [to_signed(word, 32) for word in (0, 2**31 - 1, 2**31, 2**32 - 1)] == [0, 2**31 - 1, -(2**31), -1]
    assert compute_threshold(0.5) == 0 and compute_threshold(0.0) == -(2**31)
    assert compute_threshold(1 - 1e-12) == 2**31 - 1
    assert -(2**63) <= derive_site_key("dropout") < 2**63 and derive_site_key("dropout") != derive_site_key("drop")


def test_masks_are_uniform_and_independent() -> None:
    """Rates, and products of neighbours along every coordinate, within five standard deviations of chance."""
    steps, examples, positions, features = 4, 8, 16, 128
    dropped = np.empty((2, steps, examples, positions, features))
    for step in range(steps):
        keys = derive_example_keys(0, step + 1, np.arange(examples))
        for index, site in enumerate(("bert.encoder.layer.0.output.dropout", "bert.encoder.layer.1.output.dropout")):
            mask = reference_dropout.mask(keys, site, (positions, features), RATE)
            dropped[index, step] = (mask == 0) - RATE
    variance = RATE * (1 - RATE)

    def deviations(values: np.ndarray, variance: float) -> float:
        return abs(float(values.sum())) / math.sqrt(values.size * variance)

    assert deviations(dropped, variance) < 5
    for axis in range(dropped.ndim):
        for lag in (1, 2, 3, 8, 64):
            if lag < dropped.shape[axis]:
                first, second = np.split(dropped, [lag], axis)[1], np.split(dropped, [-lag], axis)[0]
                assert deviations(first * second, variance**2) < 5, (axis, lag)
    three = dropped[..., :-2] * dropped[..., 1:-1] * dropped[..., 2:]
    assert deviations(three, variance**3) < 5
    for axis in (-1, -2):  # of whole rows and columns too
        counts = (dropped + RATE).sum(axis)
        expected = dropped.shape[axis] * variance
        assert abs(counts.var() / expected - 1) < 5 * math.sqrt(2 / counts.size)


def test_words_are_uniform() -> None:
    rows = derive_example_keys(0, 1, np.arange(256)).view(np.uint64)
    words = np.concatenate([reference_dropout.words(row, 1024) for row in rows])
    for shift in (0, 12, 24):
        counts = np.bincount((words >> np.uint32(shift)) & np.uint32(255), minlength=256)
        expected = len(words) / 256
        statistic = float(((counts - expected) ** 2 / expected).sum())
        assert abs(statistic - 255) < 5 * math.sqrt(2 * 255)
