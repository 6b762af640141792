"""Tests of the comparison of batches, for runs that divide and pad them in different ways."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from common.data.batches import GlobalBatch
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.diagnose.comparison import SideComparison
from common.diagnose.findings import EQUAL, Stage
from common.diagnose.stages.batch import compare_batches

IDS = np.array([2, 0, 3, 1])
LABELS = np.array([0, 1, 1, 0, 1], np.int32)


def make_split(lengths: list[int], labels: np.ndarray = LABELS) -> ArraySplit:
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    tokens = 1 + np.arange(offsets[-1], dtype=np.int32)
    return ArraySplit({"ids": Column(tokens, offsets)}, Column(labels))


def compare(a: GlobalBatch, b: GlobalBatch) -> Stage:
    runs = SimpleNamespace(a=SimpleNamespace(batches=[a]), b=SimpleNamespace(batches=[b]))
    (stage,) = compare_batches(cast("SideComparison", runs))
    return stage


@pytest.mark.parametrize("divided", [("global", 2), ("micro_batches", 1), ("global", 1)])
def test_division_into_micro_batches_hides_no_difference(divided: tuple[str, int]) -> None:
    """A stage that compared nothing, because B has more micro-batches, would call the labels equal."""
    padding, micro_batches = divided
    a = GlobalBatch(1, IDS, make_split([3, 5, 4, 2, 6]), "global", mark_places=True)
    same = GlobalBatch(1, IDS, make_split([3, 5, 4, 2, 6]), padding, micro_batches=micro_batches)
    assert compare(a, same).verdict == EQUAL
    inverted = GlobalBatch(1, IDS, make_split([3, 5, 4, 2, 6], 1 - LABELS), padding, micro_batches=micro_batches)
    assert [cause.cause for cause in compare(a, inverted).causes] == ["inverted"]


def test_other_lengths_do_not_move_the_other_arrays() -> None:
    """Shards are sorted by length, so that the labels of B's shard stand in another order."""
    a = GlobalBatch(1, IDS, make_split([3, 5, 4, 2, 6]), "global")
    b = GlobalBatch(1, IDS, make_split([5, 3, 2, 4, 6]), "global")
    assert {cause.tensor for cause in compare(a, b).causes} == {"ids", "ids_mask"}


@pytest.mark.parametrize(
    ("ids", "cause", "sentence"),
    [
        ([0, 3, 1, 4], "other_examples", "step 1: 1 of B's 4 examples are not in A's batch"),
        ([0, 2, 3, 1], "order_of_examples", "step 1: B has the same examples in another order"),
        ([2, 0, 3], "batch_size", "step 1 has 4 examples in A and 3 in B"),
    ],
)
def test_ids_that_differ_are_counted(ids: list[int], cause: str, sentence: str) -> None:
    split = make_split([3, 5, 4, 2, 6])
    (reported,) = compare(GlobalBatch(1, IDS, split, "global"), GlobalBatch(1, np.array(ids), split, "global")).causes
    assert (reported.cause, reported.sentence) == (cause, sentence)
