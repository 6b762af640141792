"""Gated sums whose branches or gate differ in B."""

import numpy as np
import pytest
from scipy.special import expit

from common.diagnose.explain.gated_sums import explain_gated_sum

X, GATE, VALUE = np.random.default_rng(0).standard_normal((3, 6, 8))
TERMS = [("x", X), ("gate", GATE), ("value", VALUE)]
G, BRANCH = expit(GATE), np.maximum(VALUE, 0)


@pytest.mark.parametrize(
    ("b", "cause", "words"),
    [
        (G * BRANCH, "residual", "B does not add x"),
        ((1 - G) * X, "residual", "B does not add relu of value"),
        (G * X + (1 - G) * BRANCH, "gate", "B exchanges both branches"),
        (G * BRANCH + X, "gate", "B does not multiply x"),
        (BRANCH + X, "gate", "B multiplies neither"),
    ],
)
def test_the_change_of_a_gated_sum_is_named(b: np.ndarray, cause: str, words: str) -> None:
    a = G * BRANCH + (1 - G) * X
    explanation = explain_gated_sum("here", a, b, TERMS)
    assert explanation is not None
    assert explanation.cause == cause
    assert words in explanation.sentence
    swapped = explain_gated_sum("here", b, a, TERMS)
    assert swapped is not None and swapped.cause == cause


def test_other_arrays_have_no_explanation() -> None:
    a = G * BRANCH + (1 - G) * X
    assert explain_gated_sum("here", a, a + np.sin(X), TERMS) is None
    assert explain_gated_sum("here", np.sin(X), np.cos(X), TERMS) is None
    assert explain_gated_sum("here", a[:1, :4], (G * BRANCH)[:1, :4], []) is None, "too few elements"
