"""Tests of the reasons why the gradient of a parameter differs although the loss is the same."""

import numpy as np
import pytest

from common.diagnose.explain import gradient_difference
from common.diagnose.explain.gradient_difference import explain_gradient
from common.map.array_differences import compute_norm

A = np.random.default_rng(0).standard_normal((6, 6))
WITHOUT_A_ROW, CHANGED = A.copy(), A.copy()
WITHOUT_A_ROW[2], CHANGED[2] = 0, 1
NOT_FINITE = np.where(np.eye(6), np.nan, A)
CASES = {  # B's gradient, and the cause
    "zero": (np.zeros_like(A), "no_gradient"),
    "not finite": (NOT_FINITE, "not_finite"),
    "a factor": (2 * A, "scaled_gradient"),
    "a row of zeros": (WITHOUT_A_ROW, "padding_row"),
    "another row": (CHANGED, "gradient"),
    "transposed": (A.T, "transposed_gradient"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_difference_is_named(name: str) -> None:
    b, cause = CASES[name]
    assert explain_gradient(A, b, 1e-9).cause == cause


@pytest.mark.parametrize("shape", [(200, 3), (600,)])
def test_the_work_grows_with_the_size(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm of the whole gradient is computed once, not once for each row."""
    sizes = []

    def count(array: np.ndarray) -> float:
        sizes.append(array.size)
        return compute_norm(array)

    monkeypatch.setattr(gradient_difference, "compute_norm", count)
    a, b = np.random.default_rng(0).standard_normal((2, *shape))
    assert explain_gradient(a, b, 1e-9).cause == "gradient"
    assert sum(sizes) <= 4 * a.size
