"""Variants of attention."""

import numpy as np
import pytest
from scipy.special import softmax

from common.diagnose.explain import attention
from common.diagnose.explain.attention import find_attention
from common.diagnose.unpadded_tokens import unpack_tokens

STREAM = np.random.default_rng(0)
REAL = (np.arange(6) < np.array([3, 6, 2, 5])[:, None]).astype(int)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, scale: float, bias: np.ndarray) -> np.ndarray:
    q, k, v = (array.reshape(4, 6, heads, -1).transpose(0, 2, 1, 3) for array in (q, k, v))
    attended = softmax(q @ k.transpose(0, 1, 3, 2) * scale + bias, -1) @ v
    return np.asarray(attended.transpose(0, 2, 1, 3).reshape(4, 6, 8))


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
def test_a_variant_is_found(heads: int, scale: float, mask: str, order: int, expected: dict[str, str]) -> None:
    query, key, value = (STREAM.standard_normal((4, 6, 8)) for _ in range(3))
    is_visible = {
        "real": REAL[:, None, None],
        "none": np.ones((1, 1, 1, 1)),
        "inverted": 1 - REAL[:, None, None],
        "causal": REAL[:, None, None] * np.tril(np.ones((6, 6))),
    }[mask]
    first, second = (query, key)[::order]
    attended = attend(first, second, value, heads, scale, np.where(is_visible > 0, 0, -1e300))
    variant = find_attention((query, key, value), {"real": REAL}, attended)
    assert variant is not None
    assert {name: variant[name] for name in expected} == expected


@pytest.mark.parametrize("leading_axes", [(), (1,)])
def test_attention_of_unpadded_tokens_is_found(leading_axes: tuple[int, ...]) -> None:
    places = REAL.ravel().nonzero()[0]
    batch = {"attention_mask": REAL, "places": places}
    tokens = [STREAM.standard_normal((*leading_axes, len(places), 8)) for _ in range(3)]
    query, key, value = (unpack_tokens(array, batch) for array in tokens)
    assert query.shape == (4, 6, 8) and not query[REAL == 0].any()
    attended = attend(query, key, value, 2, 0.5, np.zeros(()))
    unpadded = attended.reshape(24, 8)[places].reshape(tokens[0].shape)
    variant = find_attention((query, key, value), {"real": REAL}, unpack_tokens(unpadded, batch))
    assert variant == {
        "heads": "2",
        "scale": "1 / sqrt(head size)",
        "mask": "no mask",
        "order": "query and key",
        "softmax": "over the keys",
    }


@pytest.mark.parametrize(("most_scores", "largest"), [(64 * 64, 64 * 64), (1000, 2048)])
def test_few_scores_are_computed_if_no_attention_fits(
    most_scores: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    monkeypatch.setattr(attention, "MOST_SCORES_OVER_QUERIES", most_scores)

    def count(scores: np.ndarray, axis: int) -> np.ndarray:
        sizes.append(scores.size)
        return np.asarray(softmax(scores, axis))

    monkeypatch.setattr(attention, "softmax", count)
    query, key, value, other = STREAM.standard_normal((4, 2, 64, 8))
    assert find_attention((query, key, value), {}, other) is None
    assert max(sizes) <= largest


@pytest.mark.parametrize(("heads", "order"), [("2", "query and key"), ("4", "key and query")])
def test_the_variant_of_the_other_side_is_preferred_if_several_fit(heads: str, order: str) -> None:
    """With equal keys and queries, all variants without a mask return the mean of the values."""
    query, key = (np.broadcast_to(STREAM.standard_normal((4, 1, 8)), (4, 6, 8)) for _ in range(2))
    value = STREAM.standard_normal((4, 6, 8))
    expected = {
        "heads": heads, "scale": "no scale", "mask": "inverted real", "order": order, "softmax": "over the keys"
    }  # fmt: skip
    attended = np.broadcast_to(value.mean(1, keepdims=True), value.shape)
    variant = find_attention((query, key, value), {"real": REAL}, attended, expected=expected)
    assert variant == {**expected, "mask": "no mask"}
