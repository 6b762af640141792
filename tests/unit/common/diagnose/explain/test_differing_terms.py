"""Terms and factors that the code of one side lacks, in sums of which nothing else is known."""

import numpy as np
import pytest
from scipy.special import expit

from common.diagnose.explain import differing_terms
from common.diagnose.explain.differing_terms import _Difference, explain_terms

STREAM = np.random.default_rng(0)
X, SKIP, UNKNOWN = STREAM.standard_normal((3, 4, 5, 5, 6))
GATE = STREAM.standard_normal((4, 6))
SPREAD = GATE[:, None, None]
TERMS = [("x", X), ("skip", SKIP), ("gate", GATE)]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


@pytest.mark.parametrize(
    ("a", "b", "cause", "words"),
    [
        (UNKNOWN + SKIP, UNKNOWN, "residual", "A adds skip, B does not"),
        (relu(UNKNOWN), relu(UNKNOWN + SKIP), "residual", "B adds skip, A does not"),
        (UNKNOWN + SKIP, UNKNOWN + SKIP / 2, "scale", "A adds 0.5 times skip more than B"),
        (UNKNOWN + SKIP, UNKNOWN + relu(X), "addition", "A adds skip, B adds relu of x instead"),
        (UNKNOWN + np.tanh(X), UNKNOWN, "residual", "A adds tanh of x, B does not"),
        (UNKNOWN + relu(X), UNKNOWN + X, "activation", "A adds relu of x, B adds x instead"),
        (UNKNOWN + X * expit(SPREAD), UNKNOWN + X, "gate", "A multiplies x by sigmoid of gate, B does not"),
        (
            UNKNOWN + X * expit(SPREAD),
            UNKNOWN + X * np.clip(SPREAD / 6 + 0.5, 0, 1),
            "activation",
            "A multiplies x by sigmoid of gate, B hard sigmoid of gate",
        ),
        ((UNKNOWN + SKIP).mean((1, 2)), UNKNOWN.mean((1, 2)), "residual", "A adds the mean of skip, B does not"),
    ],
)
def test_the_term_is_named(a: np.ndarray, b: np.ndarray, cause: str, words: str) -> None:
    explanation = explain_terms("here", a, b, TERMS)
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == (cause, True)
    assert explanation.sentence == f"here: {words}"


def test_other_differences_have_no_term() -> None:
    assert explain_terms("here", UNKNOWN, np.sin(X), TERMS) is None
    assert explain_terms("here", relu(UNKNOWN), relu(UNKNOWN + np.sin(X)), TERMS) is None
    assert explain_terms("here", UNKNOWN, UNKNOWN * np.nan, TERMS) is None


def test_a_single_element_that_differs_fits_no_function(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(_Difference, "equals", lambda self, difference: compared.append(difference))
    changed = UNKNOWN.copy()
    changed.flat[4] += 1  # a random sample may contain no element that differs
    assert explain_terms("here", UNKNOWN, changed, TERMS) is None
    assert not compared


def test_values_that_overflow_are_no_explanation() -> None:
    with np.errstate(all="raise"):
        assert explain_terms("here", UNKNOWN, UNKNOWN + np.sin(X), [("large", 1000 * X), ("skip", SKIP)]) is None


def test_a_term_does_not_become_one() -> None:
    assert explain_terms("here", UNKNOWN + X, UNKNOWN + 1, TERMS) is None


def test_pairs_of_many_reduced_terms_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    monkeypatch.setattr(differing_terms, "_find_functions", lambda place, difference, terms: counts.append(len(terms)))
    terms = [(str(index), X + index) for index in range(25)]
    assert explain_terms("here", UNKNOWN[:, 0, 0], np.sin(UNKNOWN[:, 0, 0]), terms) is None
    assert counts == [differing_terms.MOST_TERMS]
