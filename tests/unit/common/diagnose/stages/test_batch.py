"""What is said of initial weights."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.stages.batch import compare_weights, untied

STREAM = np.random.default_rng(0)
GATES, EMBEDDING = STREAM.standard_normal((16, 3)), STREAM.standard_normal((5, 3))
Weights = dict[str, np.ndarray]


def run(weights: Weights) -> Any:
    return SimpleNamespace(states=[SimpleNamespace(weights=weights)])


def moved(order: list[int]) -> np.ndarray:
    return np.concatenate([np.split(GATES, len(order))[each] for each in order])


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("lstm.weight_ih_l0", "gate_order", "has the gates i, f, o, g where A has i, f, g, o"),
        ("cell/recurrent_kernel", "gate_order", "has the gates i, f, o, g where A has i, f, g, o"),
        ("inner.weight", "block_order", "has A's 4 blocks in the order 1, 2, 4, 3: compare the order of gates"),
    ],
)
def test_blocks_in_another_order_are_named(name: str, cause: str, words: str) -> None:
    stage = compare_weights(run({name: GATES}), run({name: moved([0, 1, 3, 2])}))
    assert [(each.cause, each.confirmed) for each in stage.causes] == [(cause, True)]
    assert words in stage.causes[0].sentence


def test_rows_of_a_small_matrix_are_no_blocks() -> None:
    a = STREAM.standard_normal((4, 3))
    assert [each.cause for each in compare_weights(run({"w": a}), run({"w": a[[0, 1, 3, 2]]})).causes] == [
        "other_weights"
    ]


@pytest.mark.parametrize("copy", [EMBEDDING, EMBEDDING.T])
def test_a_copy_of_another_parameter_is_untied(copy: np.ndarray) -> None:
    tied, apart = run({"embedding": EMBEDDING}), run({"embedding": EMBEDDING, "output": copy.copy()})
    for a, b in ((tied, apart), (apart, tied)):
        assert untied(a, b) == {"output": "embedding"}
        assert compare_weights(a, b).verdict == "equal"


@pytest.mark.parametrize("other", [STREAM.standard_normal((5, 3)), np.zeros((5, 3))])
def test_a_parameter_of_its_own_is_missing(other: np.ndarray) -> None:
    a, b = run({"embedding": np.zeros((5, 3))}), run({"embedding": np.zeros((5, 3)), "output": other})
    assert untied(a, b) == {}
    assert [each.cause for each in compare_weights(a, b).causes] == ["missing_parameter"]
