"""A split of arrays: what is gathered, its lengths, weights and losses, and its global batches."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.tasks import CustomTaskSettings, LanguageModelSettings
from common.data.batches import GlobalBatch
from common.data.padding import choose_padding, count_computed_tokens
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from tests.unit.common.data.splits.test_array_column import ragged
from tests.unit.reference_losses import CLASSIFICATION

LENGTHS = [3, 9, 0, 20, 1, 8, 30, 12]
WORDS = [[100 * example + place for place in range(length)] for example, length in enumerate(LENGTHS)]
ALL = np.arange(len(LENGTHS))


def make(labels: Column) -> ArraySplit:
    inputs = {"x": Column(np.arange(16, dtype=np.float32).reshape(8, 2)), "words": ragged(WORDS)}
    return ArraySplit({**inputs, "tags": ragged([example[:5] for example in WORDS])}, labels, np.arange(1, 9) / 2)


CLASSES = Column(np.arange(8, dtype=np.int32) % 3)


def test_shapes_of_examples() -> None:
    shapes = make(CLASSES).example_shapes
    assert shapes == {
        "x": (2,),
        "words": (None,),
        "words_mask": (None,),
        "tags": (None,),
        "tags_mask": (None,),
        "labels": (),
    }


def test_gather() -> None:
    ids, batch = np.array([3, 0]), np.array([0, 3, 6])
    arrays = make(CLASSES).gather(ids, batch)
    assert {name: (str(array.dtype), array.shape) for name, array in arrays.items()} == {
        "x": ("float32", (2, 2)),
        "words": ("int32", (2, 32)),
        "words_mask": ("int32", (2, 32)),
        "tags": ("int32", (2, 8)),
        "tags_mask": ("int32", (2, 8)),
        "labels": ("int32", (2,)),
    }
    assert arrays["words_mask"].sum(1).tolist() == [20, 3]
    assert arrays["words"][0, :20].tolist() == WORDS[3]
    assert arrays["x"].tolist() == [[6, 7], [0, 1]]


def test_lengths_are_those_of_all_ragged_inputs() -> None:
    split = make(CLASSES)
    assert split.lengths(ALL).tolist() == [length + min(length, 5) for length in LENGTHS]
    assert ArraySplit({"x": split.inputs["x"]}, CLASSES).lengths(ALL[:3]).tolist() == [0, 0, 0]


def test_weights() -> None:
    split = make(CLASSES)
    assert split.weights(np.array([4, 1])).tolist() == [2.5, 1]
    ones = ArraySplit(split.inputs, CLASSES).weights(ALL)
    assert (ones.dtype, ones.tolist()) == (np.float64, [1] * 8)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (CLASSES, [1] * 8),
        (Column(np.zeros(8, np.float32)), [1] * 8),
        (Column(-np.ones((8, 4), np.float32)), [1] * 8),
        (Column(np.array([[5, -1, -100], [0, 0, 0]] * 4, np.int32)), [1, 3] * 4),
        (Column(np.full((8, 2, 3), -1, np.int32)), [0] * 8),
        (ragged([[1, -1, 2], [], [-100], [0]] * 2), [2, 0, 0, 1] * 2),
    ],
)
def test_loss_counts(labels: Column, expected: list[int]) -> None:
    split = replace(make(labels), task=LanguageModelSettings("language_model"))
    counts = split.loss_counts(ALL)
    assert (counts.dtype, counts.tolist()) == (np.float64, expected)
    assert split.loss_counts(ALL[::-1][:3]).tolist() == expected[::-1][:3]
    assert make(labels).loss_counts(ALL).tolist() == [1] * 8


def test_a_loss_function_of_the_user_has_one_loss_for_each_example() -> None:
    """However many labels an example has: their number is no divisor of the loss of a step."""
    task = CustomTaskSettings("custom", "losses:torch", "losses:tf")
    for labels in (CLASSES, Column(np.zeros((8, 2, 3), np.int32)), Column(np.full((8, 2), -100, np.int32))):
        assert replace(make(labels), task=task).loss_counts(ALL).tolist() == [1] * 8


def test_loss_counts_of_ragged_classes() -> None:
    """Padding and ignored labels count nothing. Padding has the label that the task ignores."""
    split = replace(make(ragged([[1, 7, 2], [], [7], [0]] * 2)), task=replace(CLASSIFICATION, ignore_label=7))
    assert split.loss_counts(ALL).tolist() == [2, 0, 0, 1] * 2
    assert split.gather(ALL[:2], ALL[:2])["labels"].tolist() == [[1, 7, 2] + [7] * 5, [7] * 8]


def test_without_ragged_inputs_the_labels_of_tokens_are_counted() -> None:
    """As in blocks of text, all of one length."""
    tokens = Column(np.array([[5, -1], [0, 0]] * 4, np.int32))
    of_tokens, of_examples = (ArraySplit({"tokens": tokens}, labels) for labels in (tokens, CLASSES))
    assert of_tokens.lengths(ALL).tolist() == [1, 2] * 4
    assert of_tokens.lengths(ALL).dtype == np.int64
    assert of_tokens.count_tokens(of_tokens.gather(ALL[:3], ALL)) == 6
    assert of_examples.lengths(ALL).tolist() == [0] * 8
    assert of_examples.count_tokens(of_examples.gather(ALL[:3], ALL)) == 0


def test_ragged_labels_are_padded_with_no_label() -> None:
    split = make(ragged(WORDS))
    arrays = split.gather(np.array([0, 4]), np.array([0, 1, 4]))
    assert arrays["labels"].shape == arrays["words"].shape == (2, 16)
    assert arrays["labels"].tolist() == [[0, 1, 2] + [-1] * 13, [400] + [-1] * 15]
    assert split.labels.tolist() == [value for example in WORDS for value in example]
    assert len(split) == 8


@pytest.mark.slow
@given(
    world_size=st.integers(1, 9),
    ids=st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True),
    padding=st.sampled_from(["global", "micro_batches", "unpadded"]),
)
def test_a_global_batch(world_size: int, ids: list[int], padding: str) -> None:
    """Every example is completely in exactly one shard, for any number of shards."""
    split = make(CLASSES)
    batch = GlobalBatch(1, np.array(ids), split, padding)
    examples = []
    for rank in range(world_size):
        for part in batch.shard(rank, world_size):
            widest = split.inputs["words"].lengths(np.array(ids)).max()
            assert part["words"].shape == part["words_mask"].shape
            assert padding != "global" or part["words"].shape[1] == max(8, -(-widest // 8) * 8)
            for row in np.flatnonzero(part["weights"]):
                words = part["words"][row][part["words_mask"][row] == 1].tolist()
                examples.append((part["x"][row, 0] / 2, words, part["labels"][row]))
    assert sorted(examples) == [(i, WORDS[i], i % 3) for i in sorted(ids)]
    assert batch.tokens == sum(len(WORDS[i]) + min(len(WORDS[i]), 5) for i in ids)


@pytest.mark.slow
def test_the_lengths_decide_the_padding() -> None:
    def split(lengths: list[int]) -> ArraySplit:
        return ArraySplit({"words": ragged([[1] * length for length in lengths])}, Column(np.zeros(64, np.int32)))

    assert choose_padding(split([0, 64] * 32), 16, 0, 2, False, 10**8) == "micro_batches"  # the first example is empty
    assert choose_padding(split([15, 16] * 32), 16, 0, 2, False, 10**8) == "global"
    assert choose_padding(ArraySplit({"x": CLASSES}, CLASSES), 4, 0, 2, False, 10**8) == "global"
    tokens = count_computed_tokens(split([8, 64] * 32), 64, 0, 2, ["global", "micro_batches"])
    assert tokens == {"global": 25 * 64 * 64, "micro_batches": 25 * 32 * (8 + 64)}
