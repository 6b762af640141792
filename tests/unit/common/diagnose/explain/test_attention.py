"""Candidates that explain arrays exactly."""

import numpy as np
import pytest
from scipy.special import softmax

from common.diagnose.explain.attention import (
    ACTIVATIONS,
    activation_of,
    attention_of,
    by_example,
    epsilon_of,
    pooling_of,
    scaled_activation_of,
)

STREAM = np.random.default_rng(0)
X = STREAM.standard_normal((4, 6, 8))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_named(name: str) -> None:
    wide = X * 4  # relu6 is not relu then
    assert activation_of(wide, ACTIVATIONS[name](wide)) == name


@pytest.mark.parametrize("name", ["tanh", "exact gelu", "relu", "softmax", "log_softmax"])
@pytest.mark.parametrize("factor", [0.125, 2.0])
def test_a_factor_inside_of_an_activation_is_named(name: str, factor: float) -> None:
    assert scaled_activation_of(X, ACTIVATIONS[name](factor * X)) == f"{name} of {factor:g} times its input"
    assert scaled_activation_of(X, ACTIVATIONS[name](X)) == name


def test_what_no_activation_explains_has_no_name() -> None:
    assert activation_of(X, X**3) is None
    assert scaled_activation_of(X, X**3) is None
    assert scaled_activation_of(X, 2 * X) is None
    assert activation_of(X, X[:, 0]) is None


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, scale: float, bias: np.ndarray) -> np.ndarray:
    q, k, v = (each.reshape(4, 6, heads, -1).transpose(0, 2, 1, 3) for each in (q, k, v))
    out = softmax(q @ k.transpose(0, 1, 3, 2) * scale + bias, -1) @ v
    return np.asarray(out.transpose(0, 2, 1, 3).reshape(4, 6, 8))


@pytest.mark.parametrize(
    ("heads", "scale", "mask", "order", "expected"),
    [
        (2, 0.5, "real", 1, {"scale": "1 / sqrt(head size)", "mask": "real", "order": "query and key"}),
        (2, 1.0, "real", 1, {"scale": "no scale"}),
        (2, 8**-0.5, "real", 1, {"scale": "1 / sqrt(all features)"}),
        (4, 2**-0.5, "real", 1, {"heads": "4"}),
        (2, 0.5, "none", 1, {"mask": "no mask"}),
        (2, 0.5, "inverted", 1, {"mask": "inverted real"}),
        (2, 0.5, "causal", 1, {"mask": "causal, real"}),
        (2, 0.5, "real", -1, {"order": "key and query"}),
    ],
)
def test_an_attention_is_explained(heads: int, scale: float, mask: str, order: int, expected: dict[str, str]) -> None:
    q, k, v = (STREAM.standard_normal((4, 6, 8)) for _ in range(3))
    real = (np.arange(6) < np.array([3, 6, 2, 5])[:, None]).astype(int)
    keep = {
        "real": real[:, None, None],
        "none": np.ones((1, 1, 1, 1)),
        "inverted": 1 - real[:, None, None],
        "causal": real[:, None, None] * np.tril(np.ones((6, 6))),
    }[mask]
    bias = np.where(keep > 0, 0, -1e300)
    first, second = (q, k)[::order]
    out = attended(first, second, v, heads, scale, bias)
    found = attention_of((q, k, v), {"real": real}, out)
    assert found is not None
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("lead", [(), (1,)])
def test_an_attention_of_unpadded_tokens_is_explained(lead: tuple[int, ...]) -> None:
    real = (np.arange(6) < np.array([3, 6, 2, 5])[:, None]).astype(int)
    places = real.ravel().nonzero()[0]
    batch = {"attention_mask": real, "places": places}
    tokens = [STREAM.standard_normal((*lead, len(places), 8)) for _ in range(3)]
    q, k, v = (by_example(each, batch) for each in tokens)
    assert q.shape == (4, 6, 8) and not q[real == 0].any()
    out = attended(q, k, v, 2, 0.5, np.zeros(()))
    unpadded = out.reshape(24, 8)[places].reshape(tokens[0].shape)
    found = attention_of((q, k, v), {"real": real}, by_example(unpadded, batch))
    assert found == {"heads": "2", "scale": "1 / sqrt(head size)", "mask": "no mask", "order": "query and key"}


def test_tokens_of_padded_examples_in_one_axis_are_parted() -> None:
    batch = {"attention_mask": np.ones((4, 6))}
    assert np.array_equal(by_example(X.reshape(24, 8), batch), X)
    for other in (X, X[:, 0], X[:1], X[0, 0, 0]):
        assert by_example(other, batch) is other
        assert by_example(other, {}) is other


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 1e-3])
def test_the_epsilon_of_a_layer_norm_is_found(epsilon: float) -> None:
    gamma, beta = STREAM.standard_normal(8), STREAM.standard_normal(8)
    x = X * 0.05
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * gamma + beta
    assert epsilon_of(x, gamma, beta, y) == pytest.approx(epsilon, rel=1e-2)
    assert epsilon_of(x, gamma, beta, y + 1e-6) is None
    assert epsilon_of(x, gamma[:4], beta[:4], y) is None


def test_a_pooling_is_named() -> None:
    real = (np.arange(6) < np.array([3, 6, 2, 5])[:, None]).astype(int)
    masked = (X * real[..., None]).sum(1) / real.sum(1)[:, None]
    cases = {
        "the mean": X.mean(1),
        "the maximum": X.max(1),
        "the first token": X[:, 0],
        "the last token": X[:, -1],
        "the mean where real is 1": masked,
        "the last token where real is 1": X[np.arange(4), real.sum(1) - 1],
    }
    assert {name: pooling_of(X, each, {"real": real}) for name, each in cases.items()} == {name: name for name in cases}
    assert pooling_of(X, X.mean(1) * 2, {}) is None


def test_a_pooling_of_channels_first_after_an_activation_is_named() -> None:
    images = STREAM.standard_normal((4, 3, 5, 5))
    assert pooling_of(images, np.maximum(images, 0).mean((2, 3)), {}) == "the mean"
    assert pooling_of(images, np.maximum(images, 0).max((2, 3)), {}) == "the maximum"
