"""What makes one array of another."""

import numpy as np
import pytest

from common.diagnose.explain.batch_arrays import contents, explain_array

STREAM = np.random.default_rng(0)
TOKENS = STREAM.integers(1, 50, (6, 5)).astype(float)
TEXT = STREAM.integers(1, 20, (8, 9)).astype(float)  # longer than what is cut off
PADDED = TEXT[:, :7] * (np.arange(7) < np.array([3, 7, 4, 7, 5, 6, 7, 2])[:, None])
LEFT = np.array([np.roll(each, 7 - np.count_nonzero(each)) for each in PADDED])
FULL = PADDED.all(1, keepdims=True)
BATCHES = [{"tokens": PADDED[:4]}, {"tokens": np.pad(PADDED[4:], ((0, 0), (0, 2)))}]


@pytest.mark.parametrize(
    ("cause", "a", "b"),
    [
        ("array_of_zeros", TOKENS, np.zeros((6, 5))),
        ("examples_swapped", TOKENS, TOKENS[::-1]),
        ("inverted", (TOKENS > 25) * 1.0, (TOKENS <= 25) * 1.0),
        ("reversed", TOKENS, TOKENS[:, ::-1]),
        ("order_of_values", TOKENS, TOKENS[:, [1, 0, 2, 3, 4]]),
        ("scaled_inputs", TOKENS, TOKENS / 255 - 0.5),
        ("scaled_inputs", TOKENS, TOKENS * 2),
        ("array_of_ones", (PADDED > 0) * 1.0, np.ones_like(PADDED)),
        ("padding_side", PADDED, LEFT),
        ("padding_side", LEFT, PADDED),
        ("padding_side", (PADDED > 0) * 1.0, (LEFT > 0) * 1.0),
        ("renumbered", PADDED, np.where(PADDED > 12, PADDED - 10, PADDED)),
        ("renumbered", np.array([0.0, 1, 2, 0, 1, 2, 1]), np.array([1.0, 2, 0, 1, 2, 0, 2])),
        ("other_values", np.array([0.0, 1, 2, 0, 1, 2, 1]), np.array([0.0, 1, 0, 0, 1, 2, 1])),
        ("renumbered", np.array([0.0, 1, 2, 0, 0, 2, 2]), np.array([2.0, 1, 0, 2, 2, 0, 0])),
        ("other_values", np.arange(6.0), np.array([0.0, 2, 1, 3, 5, 9])),
        ("truncation_side", PADDED, np.where(FULL, TEXT[:, 2:], PADDED)),
        ("other_values", PADDED, np.where(FULL, TEXT[:, 2:][::-1], PADDED)),
        ("other_values", TOKENS, TOKENS + (np.arange(6) == 2)[:, None]),
    ],
)
def test_an_array_is_explained(cause: str, a: np.ndarray, b: np.ndarray) -> None:
    assert explain_array(a, b)[0] == cause


def test_examples_of_other_places() -> None:
    known = contents(BATCHES)["tokens"]
    assert explain_array(PADDED[:4], PADDED[4:], known)[0] == "examples_swapped"
    assert explain_array(PADDED[:4], PADDED[4:], contents(BATCHES[:1])["tokens"])[0] == "other_values"
