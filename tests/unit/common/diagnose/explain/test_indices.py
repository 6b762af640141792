"""Explain what an embedding receives on both sides."""

import numpy as np

from common.diagnose.explain.indices import explain_indices

TOKENS = np.arange(12).reshape(3, 4) % 7


def test_tokens_may_come_before_the_examples() -> None:
    assert explain_indices("embedding", TOKENS.T, TOKENS) is None
    assert explain_indices("embedding", TOKENS, TOKENS) is None


def test_other_indices_are_named() -> None:
    explanation = explain_indices("embedding", TOKENS.T, (TOKENS * 3 + 1) % 7)
    assert explanation is not None
    assert explanation.cause == "other_indices"
