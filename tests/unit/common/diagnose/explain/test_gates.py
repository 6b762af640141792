"""The order of gates in recurrent layers."""

import numpy as np
import pytest

from common.diagnose.explain.gates import (
    compute_gru_states,
    compute_lstm_states,
    describe_order,
    find_block_order,
    find_gate_order,
)

STREAM = np.random.default_rng(0)
X, UNITS = STREAM.standard_normal((3, 5, 2)), 4
COMPUTE_STATES = {4: compute_lstm_states, 3: compute_gru_states}
ORDERS = [(0, 1, 2, 3), (0, 1, 3, 2), (3, 0, 2, 1), (0, 1, 2), (1, 0, 2)]


def draw_weights(count: int) -> dict[str, np.ndarray]:
    shapes = {"weight_ih": (count * UNITS, 2), "weight_hh": (count * UNITS, UNITS)}
    shapes |= {"bias_ih": (count * UNITS,), "bias_hh": (count * UNITS,)}  # type: ignore[dict-item]
    return {f"layer.{name}_l0": STREAM.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_a_layer_is_found(order: tuple[int, ...]) -> None:
    weights = draw_weights(len(order))
    blocks_of_weights = [np.split(weight, len(order)) for weight in weights.values()]
    reordered = [np.concatenate([blocks[index] for index in order]) for blocks in blocks_of_weights]
    states = COMPUTE_STATES[len(order)](X, *reordered)
    assert find_gate_order("layer", weights, X, states) == describe_order(order)
    assert find_gate_order("layer", weights, X, states[:, -1]) == describe_order(order)
    assert find_gate_order("layer", weights, X, states**2) is None
    assert find_gate_order("other", weights, X, states) is None


def test_gates_describe_order() -> None:
    assert describe_order((0, 1, 2, 3)) == "i, f, g, o" and describe_order((0, 1, 3, 2)) == "i, f, o, g"
    assert describe_order((2, 0, 1)) == "z, n, r", "r reads the last block"


@pytest.mark.parametrize("shape", [(12, 2), (2, 12), (12,)])
def test_the_order_of_blocks_is_found(shape: tuple[int, ...]) -> None:
    a = STREAM.standard_normal(shape)
    axis = shape.index(12)
    blocks = np.split(a, 4, axis)
    b = np.concatenate([blocks[index] for index in (2, 0, 1, 3)], axis)
    assert find_block_order(a, b, 4) == (1, 2, 0, 3)
    assert find_block_order(a, b, 3) is None and find_block_order(a, a, 4) is None
    assert find_block_order(a, b + 1, 4) is None and find_block_order(a, b, 5) is None
