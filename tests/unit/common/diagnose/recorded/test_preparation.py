"""Ways in which scripts prepare the same examples differently, and batches in another order."""

import numpy as np
import pytest

from common.diagnose.recorded.example_order import ArrayPair, find_order, pair_arrays
from common.diagnose.recorded.preparation import explain_preparation

STREAM = np.random.default_rng(0)
IMAGES = STREAM.random((4, 3, 6, 6)).astype(np.float32)
MEAN, STD = np.array([0.485, 0.456, 0.406])[:, None, None], np.array([0.229, 0.224, 0.225])[:, None, None]
LENGTHS = [9, 5, 7, 12]
TEXTS = np.stack([np.pad(STREAM.integers(5, 99, size=n), (0, 12 - n)) for n in LENGTHS])
WITH_START = np.concatenate([np.full((4, 1), 2), TEXTS], 1)[:, :12]
TARGETS = np.where(TEXTS > 0, TEXTS, -100)
BLURRED = (IMAGES + np.roll(IMAGES, 1, 3) / 6 + np.roll(IMAGES, 1, 2) / 6) / (4 / 3)
LEFT = np.stack([np.roll(text, 12 - n) for text, n in zip(TEXTS, LENGTHS, strict=True)])

PREPARATIONS: dict[str, tuple[str, np.ndarray, np.ndarray, bool]] = {
    "0 to 255": ("scaled_inputs", IMAGES, IMAGES * 255, False),
    "mean and std": ("normalization", IMAGES, (IMAGES - MEAN) / STD, False),
    "BGR": ("channel_order", IMAGES, IMAGES[:, ::-1], False),
    "BGR channels last": ("channel_order", np.moveaxis(IMAGES, 1, 3), np.moveaxis(IMAGES, 1, 3)[..., ::-1], False),
    "BGR of 0 to 255": ("channel_order", IMAGES, IMAGES[:, ::-1] * 255, False),
    "resized": ("prepared_differently", IMAGES, BLURRED, False),
    "padded longer": ("padding_length", TEXTS, np.pad(TEXTS, [(0, 0), (0, 4)]), False),
    "cut shorter": ("truncation_length", TEXTS, TEXTS[:, :6], False),
    "padded at the start": ("padding_side", TEXTS, LEFT, False),
    "special tokens": ("special_tokens", WITH_START, TEXTS, False),
    "mask of ones": ("array_of_ones", (TEXTS > 0).astype(int), np.ones_like(TEXTS), False),
    "vocabulary": (
        "renumbered",
        np.repeat(TEXTS, 2, 0),
        np.repeat(np.where(TEXTS > 0, TEXTS * 7 % 101, 0), 2, 0),
        False,
    ),
    "shape": ("shape", IMAGES, IMAGES[:, :, :4], False),
    "numbering": ("labels_shifted", np.array([0, 1, 2, 1]), np.array([1, 2, 3, 2]), True),
    "next token": ("labels_shifted", TEXTS, np.pad(TEXTS[:, 1:], [(0, 0), (0, 1)]), True),
    "next but one token": ("labels_shifted", TEXTS, TEXTS[:, 1:], True),
    "labels transposed": ("labels_transposed", TEXTS, TEXTS.T.reshape(TEXTS.shape), True),
    "labels of A transposed": ("labels_transposed", TEXTS.T.reshape(TEXTS.shape), TEXTS, True),
    "padding counted": ("ignored_labels", TARGETS, TEXTS, True),
    "padding ignored": ("ignored_labels", TEXTS, TARGETS, True),
}


@pytest.mark.parametrize("name", PREPARATIONS)
def test_preparations(name: str) -> None:
    cause, a, b, is_label = PREPARATIONS[name]
    explanation = explain_preparation(a, b, is_label)
    assert explanation.cause == cause, explanation.sentence


def test_the_order_of_examples_is_found_despite_rounding() -> None:
    order = np.array([2, 0, 3, 1])
    rounded = (IMAGES * np.float32(3)) / np.float32(3)
    pair = ArrayPair("x", IMAGES, rounded[order])
    assert find_order([pair]).tolist() == order.tolist()  # type: ignore[union-attr]
    assert find_order([ArrayPair("x", IMAGES, IMAGES * 1.01)]) is None


def test_arrays_are_paired_across_names_and_layouts() -> None:
    labels, one_hot = np.array([0, 2, 1, 1]), np.eye(3)[[0, 2, 1, 1]]
    pairs, missing_a, missing_b = pair_arrays({"pixel_values": IMAGES}, {"0": np.moveaxis(IMAGES, 1, 3)})
    assert (missing_a, missing_b) == ([], [])
    assert np.array_equal(pairs[0].a, pairs[0].b)
    (label,), *_ = pair_arrays({"target": labels}, {"0": one_hot}, are_labels=True)
    assert np.array_equal(label.a, label.b)


def test_a_growing_function_of_the_values_is_another_preparation() -> None:
    spectrum = np.random.default_rng(0).random((4, 6, 3))
    explanation = explain_preparation(np.log(spectrum + 1e-6), spectrum, is_label=False)
    assert (explanation.cause, explanation.confirmed) == ("prepared_differently", True)
