"""Gated sums whose branches or gate differ in B."""

from unittest.mock import Mock

import numpy as np
import pytest
from scipy.special import expit

from common.diagnose.explain import gated_sums
from common.diagnose.explain.between_layers import explain_code
from common.diagnose.explain.code_section import CodeSection, LayerOutput
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


def test_few_elements_have_no_explanation() -> None:
    """The same sums have one with all elements."""
    a, b = G * BRANCH + (1 - G) * X, G * BRANCH
    terms = [(title, term[:1, :4]) for title, term in TERMS]
    assert explain_gated_sum("here", a[:1, :4], b[:1, :4], terms) is None
    assert explain_gated_sum("here", a, b, TERMS) is not None


def test_a_missing_gate_after_a_relu_is_no_gated_sum() -> None:
    """The output of the ReLU equals its own ReLU, absolute value and ELU, of which any gated sum is the output."""
    assert explain_gated_sum("here", BRANCH, G * BRANCH, [("branch", BRANCH), ("gate", GATE)]) is None
    assert explain_gated_sum("here", G * BRANCH, BRANCH, [("branch", BRANCH), ("gate", GATE)]) is None
    outputs = [LayerOutput("conv", BRANCH), LayerOutput("fc", GATE)]
    (explanation,) = explain_code(CodeSection("input of pool", "pool", BRANCH, G * BRANCH, outputs, {}))
    assert explanation.cause == "gate"
    assert "B multiplies the output of conv by sigmoid of the output of fc, A does not" in explanation.sentence


def test_an_array_is_no_gated_sum_with_a_branch_of_zeros() -> None:
    terms = [("branch", BRANCH), ("negative", -np.abs(X)), ("gate", GATE)]
    assert explain_gated_sum("here", G * BRANCH, BRANCH, terms) is None


def test_a_constant_gate_is_none() -> None:
    leaky = np.where(X > 0, X, X / 2)
    assert explain_gated_sum("here", leaky, X / 2, [("x", X), ("gate", np.zeros_like(X))]) is None


@pytest.mark.parametrize("branch", [BRANCH, np.minimum(VALUE, 0)])
def test_of_equal_branches_the_simplest_is_named(branch: np.ndarray) -> None:
    """No activation is named, although a ReLU, or one up to 6, would compute the same."""
    terms = [("x", X), ("branch", np.abs(branch)), ("gate", GATE)]
    a = G * np.abs(branch) + (1 - G) * X
    explanation = explain_gated_sum("here", a, G * np.abs(branch), terms)
    assert explanation is not None
    assert "A adds branch times the gate" in explanation.sentence


def test_few_sums_are_computed_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let very many candidates fit all elements but one, which is not among the sampled ones."""
    x, gate, value = np.random.default_rng(0).standard_normal((3, 5000))[:, None]
    a = expit(gate) * np.maximum(value, 0) + (1 - expit(gate)) * x
    sampled = np.random.default_rng(0).choice(a.size, gated_sums.SAMPLED_ELEMENTS, replace=False)
    a[0, np.setdiff1d(np.arange(a.size), sampled)[0]] += 100
    copies = [(name, array * (1 + 1e-10 * step)) for step in range(6) for name, array in (("x", x), ("value", value))]
    build = Mock(wraps=gated_sums._build)
    monkeypatch.setattr(gated_sums, "_build", build)
    assert explain_gated_sum("here", a, np.sin(x), [*copies, ("gate", gate)]) is None
    assert build.call_count == gated_sums.MOST_CHECKS
