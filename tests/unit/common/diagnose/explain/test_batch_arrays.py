"""Mistakes of data preparation that turn one array into another."""

import numpy as np
import pytest

from common.diagnose.explain import batch_arrays
from common.diagnose.explain.batch_arrays import explain_array, index_examples

STREAM = np.random.default_rng(0)
TOKENS = STREAM.integers(1, 50, (6, 5)).astype(float)
POINTS = np.random.default_rng(1).normal(size=(4, 7, 3))
TEXT = STREAM.integers(1, 20, (8, 9)).astype(float)  # longer than the length at which texts are cut
PADDED = TEXT[:, :7] * (np.arange(7) < np.array([3, 7, 4, 7, 5, 6, 7, 2])[:, None])
PADDED_AT_START = np.array([np.roll(text, 7 - np.count_nonzero(text)) for text in PADDED])
FILLS_LENGTH = PADDED.all(1, keepdims=True)
BATCHES = [{"tokens": PADDED[:4]}, {"tokens": np.pad(PADDED[4:], ((0, 0), (0, 2)))}]


@pytest.mark.parametrize(
    ("cause", "a", "b"),
    [
        ("array_of_zeros", TOKENS, np.zeros((6, 5))),
        ("examples_swapped", TOKENS, TOKENS[::-1]),
        ("inverted", (TOKENS > 25) * 1.0, (TOKENS <= 25) * 1.0),
        ("reversed", TOKENS, TOKENS[:, ::-1]),
        ("order_of_values", TOKENS, TOKENS[:, [1, 0, 2, 3, 4]]),
        ("order_of_values", POINTS, POINTS.astype(np.float32).reshape(4, 3, 7).swapaxes(1, 2)),
        ("reversed", POINTS, POINTS[:, :, ::-1].astype(np.float32)),
        ("other_values", POINTS, POINTS[::-1].reshape(4, 3, 7).swapaxes(1, 2)),
        ("scaled_inputs", TOKENS, TOKENS / 255 - 0.5),
        ("scaled_inputs", TOKENS, TOKENS * 2),
        ("array_of_ones", (PADDED > 0) * 1.0, np.ones_like(PADDED)),
        ("padding_side", PADDED, PADDED_AT_START),
        ("padding_side", PADDED_AT_START, PADDED),
        ("padding_side", (PADDED > 0) * 1.0, (PADDED_AT_START > 0) * 1.0),
        ("renumbered", PADDED, np.where(PADDED > 12, PADDED - 10, PADDED)),
        ("renumbered", np.array([0.0, 1, 2, 0, 1, 2, 1]), np.array([1.0, 2, 0, 1, 2, 0, 2])),
        ("other_values", np.array([0.0, 1, 2, 0, 1, 2, 1]), np.array([0.0, 1, 0, 0, 1, 2, 1])),
        ("renumbered", np.array([0.0, 1, 2, 0, 0, 2, 2]), np.array([2.0, 1, 0, 2, 2, 0, 0])),
        ("other_values", np.arange(6.0), np.array([0.0, 2, 1, 3, 5, 9])),
        ("truncation_side", PADDED, np.where(FILLS_LENGTH, TEXT[:, 2:], PADDED)),
        ("other_values", PADDED, np.where(FILLS_LENGTH, TEXT[:, 2:][::-1], PADDED)),
        ("other_values", TOKENS, TOKENS + (np.arange(6) == 2)[:, None]),
    ],
)
def test_an_array_is_explained(cause: str, a: np.ndarray, b: np.ndarray) -> None:
    assert explain_array(a, b).cause == cause


@pytest.mark.parametrize(("batches", "cause"), [(BATCHES, "examples_swapped"), (BATCHES[:1], "other_values")])
def test_examples_of_other_batches_are_recognized(batches: list[dict[str, np.ndarray]], cause: str) -> None:
    known_examples = index_examples(batches)["tokens"]
    assert explain_array(PADDED[:4], PADDED[4:], known_examples).cause == cause


def test_a_factor_is_fitted_to_few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare all elements of a large array with those that the fitted factor gives."""
    sizes, fit = [], np.polyfit

    def count(x: np.ndarray, y: np.ndarray, degree: int) -> np.ndarray:
        sizes.append(x.size)
        return fit(x, y, degree)

    monkeypatch.setattr(batch_arrays, "FITTED_ELEMENTS", 10)
    monkeypatch.setattr(np, "polyfit", count)
    assert explain_array(TOKENS, TOKENS * 2).cause == "scaled_inputs"
    assert explain_array(TOKENS, np.where(TOKENS[0, 1] == TOKENS, 7, TOKENS * 2)).cause != "scaled_inputs"
    assert sizes == [10, 10]
