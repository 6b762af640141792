"""Sums of earlier arrays, such as residual connections."""

import numpy as np
import pytest

from common.diagnose.explain.sums import compute_sum, describe_sum, find_sum

STREAM = np.random.default_rng(0)
TERMS = [(name, STREAM.standard_normal((3, 5, 4))) for name in ("x", "attended", "inner")]
ARRAYS = dict(TERMS)


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ({"x": 1.0, "attended": 1.0}, "x + attended"),
        ({"attended": 1.0}, "attended"),
        ({"x": 1.0, "inner": -1.0}, "x - inner"),
        ({"x": 0.5, "attended": 1.0, "inner": 2.0}, "0.5 times x + attended + 2 times inner"),
    ],
)
def test_a_sum_is_found(factors: dict[str, float], words: str) -> None:
    result = np.sum([factor * ARRAYS[name] for name, factor in factors.items()], axis=0)
    assert find_sum(TERMS, result) == factors
    assert describe_sum(find_sum(TERMS, result) or {}) == words
    computed = compute_sum(factors, TERMS)
    assert computed is not None and np.allclose(computed, result)
    assert compute_sum(factors, TERMS[:0]) is None


def test_what_is_no_sum_has_no_factors() -> None:
    assert find_sum(TERMS, np.tanh(ARRAYS["x"])) is None
    assert find_sum(TERMS, ARRAYS["x"][:, :2]) is None


def test_a_sum_of_half_precision_is_found() -> None:
    halves = [(title, array.astype(np.float16)) for title, array in TERMS]
    assert find_sum(halves, dict(halves)["x"]) == {"x": 1.0}
