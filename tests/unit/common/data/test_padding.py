"""Choice of the padding for train.padding=auto."""

import numpy as np
import pytest

from common.data.images.image_cache import ImageSplit
from common.data.padding import choose_padding, count_computed_tokens
from tests.conftest import MakeSplit

EQUAL, NEAR, MIXED = [16] * 64, [15, 16] * 32, [8, 64] * 32
SMALL, LARGE = 100_000, 100_000_000  # numbers of parameters


@pytest.mark.parametrize(
    ("lengths", "unpadded", "parameters", "expected"),
    [
        (EQUAL, True, LARGE, "global"),
        (NEAR, True, LARGE, "global"),  # 3 % of padding
        (MIXED, True, SMALL, "unpadded"),
        (MIXED, False, LARGE, "micro_batches"),
        (MIXED, False, SMALL, "global"),  # four passes take longer than the padding
        (NEAR, False, LARGE, "global"),
    ],
)
def test_the_lengths_and_the_model_decide(
    make_split: MakeSplit, lengths: list[int], unpadded: bool, parameters: int, expected: str
) -> None:
    assert choose_padding(make_split(lengths), 16, 0, 2, unpadded, parameters) == expected


def test_images_have_no_padding() -> None:
    split = ImageSplit(np.zeros((9, 4, 4, 1), np.uint8), np.zeros(9, np.int32), np.zeros(256, np.float32))
    assert choose_padding(split, 4, 0, 2, False, LARGE) == "global"


def test_texts_and_images_have_one_loss_and_equal_weights(make_split: MakeSplit) -> None:
    images = ImageSplit(np.zeros((9, 4, 4, 1), np.uint8), np.zeros(9, np.int32), np.zeros(256, np.float32))
    for split in (make_split(MIXED), images):
        for ones in (split.weights(np.array([3, 1])), split.loss_counts(np.array([3, 1]))):
            assert (ones.dtype, ones.tolist()) == (np.float64, [1, 1])


def test_computed_tokens(make_split: MakeSplit) -> None:
    split = make_split(MIXED)
    tokens = 25 * 32 * np.array([64 + 64, 8 + 64, 8 + 64])  # 25 steps of all 64 examples
    paddings = ["global", "micro_batches", "unpadded"]
    for world_size in (1, 2):
        assert count_computed_tokens(split, 64, 0, world_size, paddings) == dict(zip(paddings, tokens, strict=True))
