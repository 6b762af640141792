"""Values of A that stand at other places in B."""

import numpy as np
import pytest

from common.diagnose.explain.array_order import explain_order

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


def test_other_values_have_no_order() -> None:
    assert explain_order("input", X, X + 1) is None
    assert explain_order("input", X, np.abs(X)) is None
