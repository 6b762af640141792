"""The order of gates."""

import numpy as np
import pytest

from common.diagnose.explain.gates import blocks_of, gates_of, gru_states, in_words, lstm_states

STREAM = np.random.default_rng(0)
X, UNITS = STREAM.standard_normal((3, 5, 2)), 4
RUN = {4: lstm_states, 3: gru_states}
ORDERS = [(0, 1, 2, 3), (0, 1, 3, 2), (3, 0, 2, 1), (0, 1, 2), (1, 0, 2)]


def weights_of(count: int) -> dict[str, np.ndarray]:
    shapes = {"weight_ih": (count * UNITS, 2), "weight_hh": (count * UNITS, UNITS)}
    shapes |= {"bias_ih": (count * UNITS,), "bias_hh": (count * UNITS,)}  # type: ignore[dict-item]
    return {f"layer.{name}_l0": STREAM.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("order", ORDERS)
def test_a_layer_of_other_gates(order: tuple[int, ...]) -> None:
    weights = weights_of(len(order))
    blocks = [np.split(each, len(order)) for each in weights.values()]
    states = RUN[len(order)](X, *(np.concatenate([each[k] for k in order]) for each in blocks))
    assert gates_of("layer", weights, X, states) == in_words(order)
    assert gates_of("layer", weights, X, states[:, -1]) == in_words(order)
    assert gates_of("layer", weights, X, states**2) is None
    assert gates_of("other", weights, X, states) is None


def test_gates_in_words() -> None:
    assert in_words((0, 1, 2, 3)) == "i, f, g, o" and in_words((0, 1, 3, 2)) == "i, f, o, g"
    assert in_words((2, 0, 1)) == "z, n, r", "r reads the last block"


@pytest.mark.parametrize("shape", [(12, 2), (2, 12), (12,)])
def test_blocks_in_another_order(shape: tuple[int, ...]) -> None:
    a = STREAM.standard_normal(shape)
    axis = shape.index(12)
    blocks = np.split(a, 4, axis)
    b = np.concatenate([blocks[each] for each in (2, 0, 1, 3)], axis)
    assert blocks_of(a, b, 4) == (1, 2, 0, 3)
    assert blocks_of(a, b, 3) is None and blocks_of(a, a, 4) is None
    assert blocks_of(a, b + 1, 4) is None and blocks_of(a, b, 5) is None
