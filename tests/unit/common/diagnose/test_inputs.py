"""What makes one array of another."""

import numpy as np
import pytest

from common.diagnose.inputs import explain_array

TOKENS = np.random.default_rng(0).integers(1, 50, (6, 5)).astype(float)


@pytest.mark.parametrize(
    ("cause", "a", "b"),
    [
        ("array_of_zeros", TOKENS, np.zeros((6, 5))),
        ("examples_swapped", TOKENS, TOKENS[::-1]),
        ("inverted", (TOKENS > 25) * 1.0, (TOKENS <= 25) * 1.0),
        ("reversed", TOKENS, TOKENS[:, ::-1]),
        ("order_of_values", TOKENS, TOKENS[:, [1, 0, 2, 3, 4]]),
        ("scaled_inputs", TOKENS, TOKENS / 255 - 0.5),
        ("other_values", TOKENS, TOKENS + (np.arange(6) == 2)[:, None]),
    ],
)
def test_an_array_is_explained(cause: str, a: np.ndarray, b: np.ndarray) -> None:
    assert explain_array(a, b)[0] == cause
