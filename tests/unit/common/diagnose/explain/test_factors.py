"""Factors between two arrays, and their reasons."""

import numpy as np
import pytest

from common.diagnose.explain.factors import explain_factor

A = np.random.default_rng(0).standard_normal((8, 4))
TERMS = [("x", np.zeros((8, 4, 64)))]


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (4, ": perhaps the size of axis 1 of x, as by a sum instead of a mean"),
        (1 / 64, ": perhaps 1 / the size of axis 2 of x, as by a mean instead of a sum"),
        (1 / 8, ": perhaps 1 / the root of the size of axis 2 of x"),
        (2, ""),  # not the root of 4
        (8**0.5, ""),  # not of the number of examples
    ],
)
def test_the_factor_has_a_reason_if_a_size_equals_it(factor: float, reason: str) -> None:
    explanation = explain_factor("input", A, factor * A, TERMS)
    assert explanation is not None
    assert explanation.sentence == f"input is {factor:.6g} times A's{reason}"
