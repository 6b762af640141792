"""Attentions that are compared as a whole."""

from unittest.mock import Mock

import numpy as np
import pytest
from scipy.special import softmax

from common.diagnose.explain import whole_attention
from common.diagnose.explain.whole_attention import MOST_MEMORIES, explain_whole_attention
from common.diagnose.layer_match import LayerMatch

STREAM = np.random.default_rng(0)
LAYER = LayerMatch("attention", "cross", "cross", "cross")
X, OTHER, MEMORY = (STREAM.standard_normal((3, tokens, 8)) for tokens in (4, 6, 6))
WEIGHTS = {
    "cross.in_proj_weight": STREAM.standard_normal((24, 8)) / 3,
    "cross.in_proj_bias": STREAM.standard_normal(24),
    "cross.out_proj.weight": np.eye(8) + STREAM.standard_normal((8, 8)) / 9,
    "cross.out_proj.bias": STREAM.standard_normal(8),
}
MASKS = {
    "words": (np.arange(4) < np.array([[2], [4], [3]])).astype(int),
    "source": (np.arange(6) < np.array([[3], [6], [4]])).astype(int),
}


def attend(heads: int, mask: np.ndarray | None, x: np.ndarray = X, memory: np.ndarray = MEMORY) -> np.ndarray:
    projections = np.split(WEIGHTS["cross.in_proj_weight"], 3), np.split(WEIGHTS["cross.in_proj_bias"], 3)
    arrays = [x @ w.T + b for x, w, b in zip((x, memory, memory), *projections, strict=True)]
    q, k, v = (array.reshape(len(x), -1, heads, 8 // heads).transpose(0, 2, 1, 3) for array in arrays)
    scores = q @ k.transpose(0, 1, 3, 2) / (8 // heads) ** 0.5
    scores = scores if mask is None else np.where(mask[:, None, None] > 0, scores, -np.inf)
    attended = (softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return np.asarray(attended @ WEIGHTS["cross.out_proj.weight"].T + WEIGHTS["cross.out_proj.bias"])


@pytest.mark.parametrize(
    ("heads", "mask", "sentence"),
    [
        (2, None, "attention's mask is source in A and no mask in B"),
        (4, MASKS["source"], "attention's heads is 2 in A and 4 in B"),
    ],
)
def test_a_cross_attention_is_computed_again(heads: int, mask: np.ndarray | None, sentence: str) -> None:
    outputs = attend(2, MASKS["source"]), attend(heads, mask)
    explanation = explain_whole_attention(LAYER, X, outputs, WEIGHTS, MASKS, [OTHER, MEMORY])
    assert explanation is not None
    assert explanation.sentence == sentence
    assert explain_whole_attention(LAYER, X, outputs, WEIGHTS, MASKS, [OTHER]) is None


def test_a_bounded_number_of_different_memories_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Mock(return_value=None)
    monkeypatch.setattr(whole_attention, "find_attention", search)
    outputs = attend(2, None), attend(4, None)
    explain_whole_attention(LAYER, X, outputs, WEIGHTS, MASKS, [X.copy(), *[OTHER.copy() for _ in range(50)]])
    assert search.call_count == 2 + 2  # once more for the words alone, and for exchanged axes
    search.reset_mock()
    explain_whole_attention(LAYER, X, outputs, WEIGHTS, MASKS, [*[X + i for i in range(1, 50)], MEMORY])
    assert search.call_count == MOST_MEMORIES + 2
    assert search.call_args_list[2].args[0][1].shape == MEMORY.shape


def test_an_inverted_mask_is_named_though_one_side_also_hides_queries() -> None:
    words = MASKS["words"] * (np.arange(4) < 3)  # each example has padding
    x = X * words[..., None]  # equal keys of the padding: heads and scale do not matter if only they are attended to
    outputs = attend(2, words, x, x), attend(2, 1 - words, x, x)
    outputs[0][words == 0] = 7  # as from a mask of the queries
    explanation = explain_whole_attention(LAYER, x, outputs, WEIGHTS, {"words": words})
    assert explanation is not None
    assert explanation.sentence == "attention's mask is words in A and inverted words in B"


@pytest.mark.parametrize("side", ["A", "B"])
def test_an_attention_that_takes_the_examples_for_tokens_is_recognized(side: str) -> None:
    x = X.swapaxes(0, 1)
    outputs = attend(2, None, memory=X), attend(2, None, x, x).swapaxes(0, 1)
    explanation = explain_whole_attention(LAYER, X, outputs if side == "B" else outputs[::-1], WEIGHTS, {})
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("time_axis", True)
    assert explanation.sentence.startswith(f"{side}'s attention takes axis 0 for the tokens")
