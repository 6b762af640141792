"""Explanations of different initial weights."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.findings import Stage
from common.diagnose.stages.initial_weights import compare_initial_weights, find_one_sided_ties

STREAM = np.random.default_rng(0)
GATES, EMBEDDING = STREAM.standard_normal((16, 3)), STREAM.standard_normal((5, 3))
Weights = dict[str, np.ndarray]


def make_run(weights: Weights) -> Any:
    return SimpleNamespace(states=[SimpleNamespace(weights=weights)])


def compare(a: Any, b: Any) -> Stage:
    comparison: Any = SimpleNamespace(a=a, b=b, runs={"a": a, "b": b}, unpaired_names=set())
    (stage,) = compare_initial_weights(comparison)
    return stage


def list_causes(a: Weights, b: Weights) -> list[str]:
    return [known.cause for known in compare(make_run(a), make_run(b)).causes]


@pytest.mark.parametrize(
    ("name", "cause", "sentence"),
    [
        ("lstm.weight_ih_l0", "gate_order", "has the gates i, f, o, g, but A has i, f, g, o"),
        ("cell/recurrent_kernel", "gate_order", "has the gates i, f, o, g, but A has i, f, g, o"),
        ("inner.weight", "block_order", "has A's 4 blocks in the order 1, 2, 4, 3: compare the order of gates"),
    ],
)
def test_blocks_in_another_order_are_named(name: str, cause: str, sentence: str) -> None:
    blocks = np.split(GATES, 4)
    reordered = np.concatenate([blocks[index] for index in (0, 1, 3, 2)])
    (known,) = compare(make_run({name: GATES}), make_run({name: reordered})).causes
    assert (known.cause, known.confirmed) == (cause, True)
    assert sentence in known.sentence


def test_rows_of_a_small_matrix_are_not_blocks() -> None:
    a = STREAM.standard_normal((4, 3))
    assert list_causes({"w": a}, {"w": a[[0, 1, 3, 2]]}) == ["other_weights"]


@pytest.mark.parametrize("copy", [EMBEDDING, EMBEDDING.T])
def test_a_copy_of_another_parameter_is_tied_on_one_side(copy: np.ndarray) -> None:
    tied, separate = make_run({"embedding": EMBEDDING}), make_run({"embedding": EMBEDDING, "output": copy.copy()})
    for a, b in ((tied, separate), (separate, tied)):
        assert find_one_sided_ties(a, b) == {"output": "embedding"}
        assert compare(a, b).verdict == "equal"


@pytest.mark.parametrize("output", [STREAM.standard_normal((5, 3)), np.zeros((5, 3))])
def test_a_parameter_with_other_values_is_missing(output: np.ndarray) -> None:
    a, b = {"embedding": np.zeros((5, 3))}, {"embedding": np.zeros((5, 3)), "output": output}
    assert find_one_sided_ties(make_run(a), make_run(b)) == {}
    assert list_causes(a, b) == ["missing_parameter"]
