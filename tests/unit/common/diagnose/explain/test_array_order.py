"""Values of A that stand at other places in B."""

import numpy as np
import pytest
import torch

from common.diagnose.explain import array_order
from common.diagnose.explain.array_order import explain_order
from common.diagnose.rounding import is_close

X = np.random.default_rng(0).standard_normal((3, 5, 12))


def shuffle(x: np.ndarray, groups: int) -> np.ndarray:
    """Shuffle channels as ShuffleNet does."""
    return x.reshape(*x.shape[:-1], groups, -1).swapaxes(-1, -2).reshape(x.shape)


@pytest.mark.parametrize(
    ("a", "b", "cause", "words"),
    [
        (X, X[:, ::-1], "reversed_axis", "reversed along axis 1"),
        (X, np.concatenate([X[..., 4:], X[..., :4]], -1), "joined_order", "first 4 and the last 8 elements of axis 2"),
        (X, X[..., [6, 7, 8, 0, 1, 2, 9, 10, 11, 3, 4, 5]], "joined_order", "4 blocks of axis 2 in another order"),
        (X, shuffle(X, 3), "reshape_order", "axis 2 of 12 read as 3 x 4 and transposed"),
        (X, X.swapaxes(1, 2).reshape(X.shape), "reshape_order", "with its axes in the order 2, 1"),
        (shuffle(X, 3), shuffle(X, 2), "reshape_order", "input is term, in A with axis 2 of 12 read as 3 x 4"),
        (
            np.pad(X, ((0, 0), (2, 0), (0, 0))),
            np.pad(X, ((0, 0), (0, 2), (0, 0))),
            "padding_position",
            "-2 along axis 1",
        ),
    ],
)
def test_the_change_is_named(a: np.ndarray, b: np.ndarray, cause: str, words: str) -> None:
    explanation = explain_order("input", a, b, [("term", X)])
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == (cause, True)
    assert words in explanation.sentence


@pytest.mark.parametrize("is_swapped", [True, False])
def test_shuffled_pixels_are_named(is_swapped: bool) -> None:
    x = np.random.default_rng(1).standard_normal((2, 4, 3, 12))
    shuffled = np.moveaxis(torch.pixel_shuffle(torch.from_numpy(np.moveaxis(x, 3, 1)), 2).numpy(), 1, 3)
    blocks = x.reshape(2, 4, 3, 2, 2, 3).swapaxes(2, 3).reshape(2, 8, 6, 3)  # as depth_to_space
    a, b = (blocks, shuffled) if is_swapped else (shuffled, blocks)
    explanation = explain_order("input", a, b)
    assert explanation is not None and explanation.cause == "reshape_order"
    orders = ("2 x 2 x 3", "3 x 2 x 2") if is_swapped else ("3 x 2 x 2", "2 x 2 x 3")
    assert f"channels divided as {orders[0]} in A and {orders[1]} in B" in explanation.sentence


def test_sequences_of_which_some_features_are_reversed_are_named() -> None:
    """The second of two LSTMs begins with the last token, and its output is not reversed."""
    a = np.random.default_rng(0).standard_normal((4, 6, 8))
    b = np.concatenate([a[..., :5], np.flip(a[..., 5:], 1)], 2)
    explanation = explain_order("input of fc", a, b)
    assert explanation is not None
    assert explanation.sentence == "input of fc is A's, reversed along axis 1 in 3 of 8 elements of axis 2, from 5 to 7"


def test_parts_of_other_sizes_that_are_joined_in_another_order_are_named() -> None:
    a = np.random.default_rng(0).standard_normal((4, 12))
    explanation = explain_order("input of fc", a, np.concatenate([a[:, :5], a[:, 7:], a[:, 5:7]], 1))
    assert explanation is not None
    assert explanation.cause == "joined_order"
    assert "joined in another order: A's 0:5, 7:12, 5:7" in explanation.sentence


def test_other_values_have_no_order() -> None:
    assert explain_order("input", X, X + 1) is None
    assert explain_order("input", X, np.abs(X)) is None


def test_rounded_and_masked_values_are_not_the_same_in_another_order() -> None:
    stream = np.random.default_rng(1)
    rounded = stream.standard_normal((4, 4096)).astype(np.float32)
    rounded.view(np.uint32)[:] &= 0xFFFF0000  # bfloat16
    noisy = (rounded * (1 + 0.05 * stream.standard_normal(rounded.shape))).astype(np.float32)
    noisy.view(np.uint32)[:] &= 0xFFFF0000
    assert explain_order("input", rounded, noisy) is None
    masked = np.pad(stream.standard_normal((4, 5)), ((0, 0), (0, 5)), constant_values=-1e9)
    assert explain_order("input", masked, masked + 0.1 * stream.standard_normal(masked.shape)) is None


def test_a_small_difference_in_float64_is_no_order() -> None:
    outputs = np.random.default_rng(2).standard_normal((32, 2))  # two values stay sorted
    assert explain_order("outputs", outputs, outputs * (1 + 3e-7)) is None


def test_noise_in_dense_values_is_no_order_and_an_order_of_close_values_is_one() -> None:
    stream = np.random.default_rng(3)
    dense = stream.standard_normal((1, 200_704))
    assert explain_order("input", dense, dense * (1 + 1.1e-5 * stream.standard_normal(dense.shape))) is None
    close = 1 + 1e-7 * stream.standard_normal((4, 512))
    explanation = explain_order("input", close, close[:, stream.permutation(512)])
    assert explanation is not None and explanation.cause == "flatten_order"


def test_a_single_element_of_an_axis_and_a_vector_with_one_number_have_no_order() -> None:
    single = X[:, :1]
    assert explain_order("input", single, single * (1 + 1e-10)) is None
    explanation = explain_order("input", np.eye(5)[[1]], np.eye(5)[[2]])
    assert explanation is None or explanation.cause != "padding_position"


def test_another_order_of_many_values_is_found_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def count(a: np.ndarray, b: np.ndarray) -> bool:
        sizes.append(a.size)
        return is_close(a, b)

    monkeypatch.setattr(array_order, "is_close", count)
    a = np.random.default_rng(1).standard_normal((32, 50, 10))
    flattened = a.reshape(32, 500), a.swapaxes(1, 2).reshape(32, 500)
    explanation = explain_order("input", *flattened)
    assert explanation is not None and explanation.cause == "reshape_order"
    assert explain_order("input", flattened[0], flattened[0][:, np.random.default_rng(2).permutation(500)]) is not None
    assert sizes.count(flattened[0].size) < 100


def test_classes_are_no_reordered_values() -> None:
    """Two vectors of a single one always have the same values, whatever the classes are."""
    stream = np.random.default_rng(2)
    a, b = (np.eye(6)[stream.integers(6, size=9)] for _ in range(2))
    assert explain_order("input", a, b) is None


def test_too_large_numbers_are_no_reordered_values() -> None:
    assert explain_order("input", X * 1e200, X * 2e200) is None


def test_parts_that_only_rounding_changes_are_joined_in_another_order() -> None:
    parts = np.random.default_rng(0).standard_normal((4, 3, 5, 2)).astype("float32")
    a, b = np.concatenate(parts, 1), np.concatenate([parts[0], parts[2] * np.float32(1 + 1e-6), parts[1], parts[3]], 1)
    explanation = explain_order("input", a[..., None], b[..., None])
    assert explanation is not None
    assert explanation.cause == "joined_order"
    assert "4 blocks of axis 1 in another order: 0, 2, 1, 3" in explanation.sentence
    assert explain_order("input", a, a * np.float32(1 + 1e-6)) is None
