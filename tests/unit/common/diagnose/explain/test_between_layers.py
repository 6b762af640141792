"""Code between two layers that adds, reverses or pools other arrays in B than in A."""

import numpy as np
import pytest

from common.diagnose.explain.between_layers import explain_code
from common.diagnose.explain.code_section import CodeSection, LayerOutput

STREAM = np.random.default_rng(0)
X, ATTENDED = STREAM.standard_normal((2, 3, 5, 4))
POSITIONS = STREAM.standard_normal((1, 5, 4))
IDS = np.array([[3, 4, 0, 0, 0], [5, 1, 2, 9, 7], [8, 6, 1, 0, 0]])
LAST = IDS.astype(bool).sum(1) - 1


def explain(a: np.ndarray, b: np.ndarray, received_in_b: np.ndarray = X) -> list[tuple[str, str, bool]]:
    """Explain the input of the layer `head` after a layer `attention`, which received X in A."""
    outputs = [LayerOutput("attention", ATTENDED, X, received_in_b)]
    section = CodeSection("input of head", "head", a, b, outputs, {"ids": IDS}, {"positions": POSITIONS})
    return [(known.cause, known.sentence, known.confirmed) for known in explain_code(section)]


@pytest.mark.parametrize(
    ("a", "b", "cause", "words"),
    [
        (
            X + ATTENDED,
            ATTENDED,
            "residual",
            "the input of attention + the output of attention, B has the",
        ),
        (X + ATTENDED, X - ATTENDED, "addition", "B has the input of attention - the output of attention"),
        (np.tanh(X), np.tanh(X)[:, ::-1], "reversed_axis", "input of head is A's, reversed along axis 1"),
        (np.cos(X) + POSITIONS, np.cos(X), "constant_term", "B does not add positions"),
        (np.cos(X) + POSITIONS, np.cos(X) + POSITIONS[:, ::-1], "constant_term", "reversed along axis 1, positions"),
        (np.cos(X) + POSITIONS, np.cos(X) + POSITIONS**2, "constant_term", "but the same to every example"),
        (ATTENDED[:, 0], ATTENDED.mean(1), "pooling", "A has the first token, B the mean"),
        (ATTENDED[:, -1], ATTENDED[np.arange(3), LAST], "pooling", "B the last token where ids != 0 is 1"),
    ],
)
def test_the_operation_is_named(a: np.ndarray, b: np.ndarray, cause: str, words: str) -> None:
    ((known, sentence, confirmed),) = explain(a, b)
    assert (known, confirmed) == (cause, True)
    assert words in sentence


def test_a_sum_with_an_array_that_differs_before_is_no_cause() -> None:
    assert explain(X + ATTENDED, 2 * X + ATTENDED, received_in_b=2 * X) == []


def test_what_is_not_known_has_its_place() -> None:
    ((cause, sentence, confirmed),) = explain(np.sin(X), np.cos(X))
    assert (cause, confirmed) == ("code_between_layers", False)
    assert sentence.startswith("between attention and head: ")
