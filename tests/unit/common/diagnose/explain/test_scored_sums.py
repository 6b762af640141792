"""Sums of rows with one score for each, whose mask or activation differs in B."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from common.diagnose.explain.between_layers import explain_code
from common.diagnose.explain.code_section import CodeSection, LayerOutput
from common.diagnose.explain.scored_sums import explain_scored_sum

STREAM = np.random.default_rng(0)
ROWS, SCORES = STREAM.standard_normal((3, 9, 4)), STREAM.standard_normal((3, 9, 1))
IDS = np.where(np.arange(9) < np.array([4, 8, 6])[:, None], 3, 0)


def attend(mask: np.ndarray) -> np.ndarray:
    weights = softmax(np.where(mask[..., None], SCORES, -1e300), 1)
    return np.asarray((weights * ROWS).sum(1))


@pytest.mark.parametrize(
    ("b", "cause", "words"),
    [
        (attend(IDS >= 0), "attention_mask", "has the mask ids != 0 in A and no mask in B"),
        (attend(IDS == 0), "attention_mask", "the inverse of the mask"),
        ((expit(SCORES) * ROWS * (IDS != 0)[..., None]).sum(1), "activation", "softmax over the rows in A and sigmoid"),
    ],
)
def test_the_weights_of_the_rows_are_compared(b: np.ndarray, cause: str, words: str) -> None:
    """Join another array to both sums, and let more rows than features hide the weights."""
    joined_a, joined_b = (np.concatenate([ROWS[:, 0], array], 1) for array in (attend(IDS != 0), b))
    outputs = [LayerOutput("encoder", ROWS), LayerOutput("score", SCORES)]
    section = CodeSection("input of cell", "cell", joined_a, joined_b, outputs, {"ids": IDS})
    ((known, sentence),) = [(explanation.cause, explanation.sentence) for explanation in explain_code(section)]
    assert known == cause
    assert words in sentence and "the rows of the output of encoder" in sentence


@pytest.mark.parametrize("is_swapped", [True, False])
@pytest.mark.parametrize("value", [0, 1])
def test_zeros_are_no_sum_with_a_mask_that_masks_nothing_or_all(value: int, is_swapped: bool) -> None:
    arrays = attend(IDS >= 0), np.zeros((3, 4))
    a, b = reversed(arrays) if is_swapped else arrays
    outputs = [LayerOutput("encoder", ROWS), LayerOutput("score", SCORES)]
    section = CodeSection("input of cell", "cell", a, b, outputs, {"mask": np.full((3, 9), value)})
    assert explain_scored_sum(section) is None


def test_zeros_are_no_sum_of_scores_of_zeros() -> None:
    """Scores of 0 without an activation give zeros, those with one the half of a plain sum."""
    outputs = [LayerOutput("encoder", ROWS), LayerOutput("score", 0 * SCORES)]
    section = CodeSection("input of cell", "cell", ROWS.sum(1) / 2, np.zeros((3, 4)), outputs, {})
    assert explain_scored_sum(section) is None


@pytest.mark.parametrize("has_token_axis", [True, False])
def test_zeros_instead_of_the_last_state_are_named(has_token_axis: bool) -> None:
    state = ROWS[:, -1:] if has_token_axis else ROWS[:, -1]
    section = CodeSection("input of query", "query", state, 0 * state, [LayerOutput("encoder", ROWS)], {})
    (explanation,) = explain_code(section)
    assert explanation.sentence.endswith("A passes the last token of the output of encoder, B only zeros")


def explain_sums(
    a: np.ndarray, b: np.ndarray, outputs: dict[str, np.ndarray], batch: dict[str, np.ndarray] | None = None
) -> str:
    """Return the cause and the sentence of the only explanation of the input of a head, joined by a colon."""
    layers = [LayerOutput(name, output) for name, output in outputs.items()]
    (explanation,) = explain_code(CodeSection("input of head", "head", a, b, layers, batch or {}))
    return f"{explanation.cause}: {explanation.sentence}"


def test_softmax_over_the_single_score_of_each_row_is_named() -> None:
    """PyTorch's softmax(scores, -1) of scores [n, rows, 1] gives only ones."""
    a, b = (np.concatenate([ROWS[:, -1], array], 1) for array in ((softmax(SCORES, 1) * ROWS).sum(1), ROWS.sum(1)))
    sentence = explain_sums(a, b, {"encoder": ROWS, "score": SCORES})
    assert sentence.startswith("softmax_axis: ")
    assert sentence.endswith("has softmax over the rows in A and softmax over a single element in B")


NODES = STREAM.standard_normal((3, 7, 4))
SOURCE, TARGET = STREAM.standard_normal((2, 3, 7, 1))
EDGES = (STREAM.random((3, 7, 7)) < 0.5) | np.eye(7, dtype=bool)


def attend_to_neighbors(axis: int, slope: float = 0.2, edges: np.ndarray = EDGES) -> np.ndarray:
    """Return the output of a graph attention, arXiv 1710.10903."""
    scores = SOURCE + TARGET.swapaxes(1, 2)
    scores = np.where(edges, np.where(scores > 0, scores, slope * scores), -1e9)
    sums = softmax(scores, axis) @ NODES
    return np.asarray(np.where(sums > 0, sums, np.expm1(sums)))


@pytest.mark.parametrize(
    ("b", "cause", "words"),
    [
        (attend_to_neighbors(1), "softmax_axis", "softmax over the rows in A and softmax over the sums in B"),
        (
            attend_to_neighbors(2, 0.01),
            "activation",
            "leaky relu of slope 0.2 in A and scores with leaky relu of slope",
        ),
        (attend_to_neighbors(2, 0.2, EDGES | True), "attention_mask", "has the mask edges in A and no mask in B"),
    ],
)
def test_graph_attention_is_compared(b: np.ndarray, cause: str, words: str) -> None:
    outputs = {"nodes": NODES, "source": SOURCE, "target": TARGET}
    sentence = explain_sums(attend_to_neighbors(2), b, outputs, {"edges": EDGES.astype(np.float32)})
    assert sentence.startswith(f"{cause}: ") and words in sentence


def test_attention_between_places_with_values_of_another_size_is_compared() -> None:
    """Add the image to the attention, as position attention does (arXiv 1809.02983)."""
    image = STREAM.standard_normal((3, 4, 3, 5))
    query, key = STREAM.standard_normal((2, 3, 4, 3, 2))
    q, k, v = (array.reshape(3, 12, -1) for array in (query, key, image))
    a, b = (image + (softmax(q @ k.swapaxes(1, 2), axis) @ v).reshape(image.shape) for axis in (2, 1))
    sentence = explain_sums(a, b, {"value": image, "query": query, "key": key})
    assert sentence.startswith("softmax_axis: ")
    assert "weighted by the output of query times the output of key" in sentence
