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
