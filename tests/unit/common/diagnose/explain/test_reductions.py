"""Ways in which an array gets the shape of another one."""

import numpy as np

from common.diagnose.explain.reductions import list_reduced

X = np.random.default_rng(0).standard_normal((4, 3, 6))


def test_tokens_are_reduced_and_named() -> None:
    names = [name for name, _ in list_reduced(X, (4, 6))]
    assert names == ["the mean of ", "the sum of ", "the first token of ", "the last token of "]


def test_a_single_token_and_flattened_tokens_are_not_reduced() -> None:
    for array in (X[:, :1], X):
        ((name, reduced),) = list_reduced(array, (4, array[0].size))
        assert name == "" and np.array_equal(reduced, array.reshape(4, -1))
