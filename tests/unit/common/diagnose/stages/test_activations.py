"""Layers of a model whose tokens are one sequence: [1, t, features] in A, [t, features] in B."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from common.diagnose.explain.attention import by_example
from common.diagnose.findings import EQUAL, Stage
from common.diagnose.observation import LayerPair, Model, Observation
from common.diagnose.stages.activations import calls_for, compare_layers, in_layout
from common.map.description import Call

STREAM = np.random.default_rng(0)
REAL = (np.arange(5) < np.array([3, 5, 2])[:, None]).astype(int)
BATCH = {"attention_mask": REAL, "places": REAL.ravel().nonzero()[0]}
TOKENS = STREAM.standard_normal((10, 8))
WEIGHTS = {"norm.weight": STREAM.standard_normal(8), "norm.bias": STREAM.standard_normal(8)}
OUTPUTS = STREAM.standard_normal((3, 2))
PAIRS = [LayerPair("", name, name, f"keras/{name}") for name in ("query", "key", "value", "out", "norm")]


def test_tokens_are_moved_between_one_axis_and_two() -> None:
    x = np.arange(48.0).reshape(2, 3, 8)
    moved = in_layout(x, np.zeros((6, 8)))
    assert moved is not None and np.array_equal(moved, x.reshape(6, 8))
    back = in_layout(moved, np.zeros((2, 3, 8)))
    assert back is not None and np.array_equal(back, x)
    ids = in_layout(np.arange(6)[None], np.zeros(6))
    assert ids is not None and np.array_equal(ids, np.arange(6))
    assert in_layout(x, np.zeros((3, 2, 8))) is None
    assert in_layout(x, np.zeros((4, 12))) is None


def attention(real: np.ndarray, scale: float) -> np.ndarray:
    """Of the tokens with themselves, in two heads: [t, 8]."""
    heads = by_example(TOKENS, BATCH).reshape(3, 5, 2, 4)
    scores = np.einsum("nihd,njhd->nhij", heads, heads) * scale + np.where(real > 0, 0, -1e300)[:, None, None]
    out = np.einsum("nhij,njhd->nihd", softmax(scores, -1), heads)
    return np.asarray(out.reshape(15, 8)[BATCH["places"]])


def normal(epsilon: float) -> np.ndarray:
    centred = TOKENS - TOKENS.mean(-1, keepdims=True)
    shrunk = centred / np.sqrt(TOKENS.var(-1, keepdims=True) + epsilon)
    return np.asarray(shrunk * WEIGHTS["norm.weight"] + WEIGHTS["norm.bias"])


def layers(real: np.ndarray = REAL, scale: float = 0.5, epsilon: float = 1e-12) -> dict[str, Call]:
    calls = {name: Call(TOKENS, TOKENS) for name in ("query", "key", "value")}
    return {**calls, "out": Call(attention(real, scale), TOKENS), "norm": Call(TOKENS, normal(epsilon))}


def compare(theirs: dict[str, Call]) -> Stage:
    ours = {name: Call(*(np.asarray(each)[None] for each in (x.received, x.returned))) for name, x in layers().items()}
    a = Observation([OUTPUTS], [], ours, {}, {})
    b = replace(a, calls={f"keras/{name}": each for name, each in theirs.items()})
    assert calls_for(PAIRS, a, b).keys() == {each.b for each in PAIRS}
    return compare_layers("activations", Model(a, a, a, b, b, PAIRS, BATCH, WEIGHTS))


def test_the_same_layers_are_equal() -> None:
    stage = compare(layers())
    assert (stage.verdict, stage.causes) == (EQUAL, [])
    assert {each.tensor for each in stage.checks} >= {each.title for each in PAIRS}


@pytest.mark.parametrize(
    ("theirs", "cause", "words"),
    [
        (layers(scale=1.0), "attention_scale", "is 1 / sqrt(head size) in A and no scale in B"),
        (layers(real=np.ones((3, 5))), "attention_mask", "is attention_mask in A and no mask in B"),
        (layers(epsilon=1e-5), "epsilon", "norm | keras/norm: epsilon is 1e-12 in A and 1e-05 in B"),
    ],
)
def test_a_fault_is_named(theirs: dict[str, Call], cause: str, words: str) -> None:
    (found,) = compare(theirs).causes
    assert (found.cause, found.confirmed) == (cause, True)
    assert words in found.sentence
