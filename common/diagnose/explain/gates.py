"""Order of the gates of recurrent layers.

A weight consists of equal blocks along its first axis, one for each gate: four in an LSTM, three in a GRU. An order is
a tuple of block numbers: order[k] is the block that PyTorch's k-th gate reads.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

import numpy as np
from scipy.special import expit

from common.diagnose.rounding import is_close

LSTM_GATES, GRU_GATES = "ifgo", "rzn"  # as PyTorch names and orders them
GATES = {len(gates): gates for gates in (LSTM_GATES, GRU_GATES)}  # by their number


def find_gate_order(name: str, weights: Mapping[str, np.ndarray], x: np.ndarray, result: np.ndarray) -> str | None:
    """Return the order in which a layer reads the blocks of its weights, such as "i, f, g, o".

    The result is None if no order reproduces the layer's output, and for layers with two directions or masks.

    Args:
        name: Name of the layer, the prefix of the names of its weights.
        weights: Weights by PyTorch's parameter names.
        x: Input [n, tokens, features].
        result: States of all tokens [n, tokens, units], or of the last token [n, units].
    """
    arrays = _list_weights(name, weights, x)
    count = len(arrays[1]) // arrays[1].shape[1] if arrays else 0
    for order in permutations(range(count)) if count in GATES else ():
        reordered = [_reorder_blocks(array, order) for array in arrays]
        for examples in (slice(1), slice(None)):  # the first one rejects most orders
            states = _compute_states(x[examples], reordered)
            if not is_close(states if result.ndim == 3 else states[:, -1], result[examples]):
                break
        else:
            return describe_order(order)
    return None


def compute_states(name: str, weights: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray | None:
    """Return the states [n, tokens, units] of a recurrent layer.

    The result is None unless the layer is an LSTM or GRU of this input [n, tokens, features] with one direction.
    """
    arrays = _list_weights(name, weights, x)
    if not arrays or len(arrays[1]) // arrays[1].shape[1] not in GATES:
        return None
    return _compute_states(x, arrays)


def _list_weights(name: str, weights: Mapping[str, np.ndarray], x: np.ndarray) -> list[np.ndarray]:
    """Return the weights and biases of a recurrent layer; an empty list if some are missing or do not fit the input."""
    roles = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    arrays = [array for role in roles if (array := weights.get(f"{name}.{role}_l0")) is not None]
    is_complete = len(arrays) == len(roles) and f"{name}.weight_ih_l0_reverse" not in weights
    return arrays if is_complete and x.ndim == 3 and arrays[0].shape[1:] == x.shape[2:] else []


def _compute_states(x: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
    is_lstm = len(arrays[1]) == len(LSTM_GATES) * arrays[1].shape[1]
    return (compute_lstm_states if is_lstm else compute_gru_states)(x, *arrays)


def describe_order(order: tuple[int, ...]) -> str:
    """Return the names of the gates in the order of the weights' blocks, such as "i, f, g, o"."""
    gates = dict(zip(order, GATES[len(order)], strict=True))  # by block
    return ", ".join(gates[block] for block in sorted(gates))


def _reorder_blocks(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Return a weight in PyTorch's order: its k-th block is block order[k] of the array."""
    blocks = np.split(array, len(order))
    return np.concatenate([blocks[index] for index in order])


def compute_lstm_states(
    x: np.ndarray, weight_ih: np.ndarray, weight_hh: np.ndarray, bias_ih: np.ndarray, bias_hh: np.ndarray
) -> np.ndarray:
    """Compute the states [n, tokens, units] by the formulas of torch.nn.LSTM."""
    states, cell, state = [], np.zeros(()), np.zeros((len(x), weight_hh.shape[1]))
    for token in x.swapaxes(0, 1):
        i, f, g, o = np.split(token @ weight_ih.T + bias_ih + state @ weight_hh.T + bias_hh, 4, axis=1)
        cell = expit(f) * cell + expit(i) * np.tanh(g)
        state = expit(o) * np.tanh(cell)
        states.append(state)
    return np.stack(states, 1)


def compute_gru_states(
    x: np.ndarray, weight_ih: np.ndarray, weight_hh: np.ndarray, bias_ih: np.ndarray, bias_hh: np.ndarray
) -> np.ndarray:
    """Compute the states [n, tokens, units] by the formulas of torch.nn.GRU."""
    states, state = [], np.zeros((len(x), weight_hh.shape[1]))
    for token in x.swapaxes(0, 1):
        reset_x, update_x, new_x = np.split(token @ weight_ih.T + bias_ih, 3, axis=1)
        reset_h, update_h, new_h = np.split(state @ weight_hh.T + bias_hh, 3, axis=1)
        update = expit(update_x + update_h)
        new = np.tanh(new_x + expit(reset_x + reset_h) * new_h)
        state = (1 - update) * new + update * state
        states.append(state)
    return np.stack(states, 1)


def find_block_order(
    a: np.ndarray,
    b: np.ndarray,
    count: int,
    are_equal: Callable[[np.ndarray, np.ndarray], bool] = np.array_equal,
) -> tuple[int, ...] | None:
    """Return the position in b of each of the `count` blocks of a, along the first or the last axis.

    The result is None unless b consists of the same blocks in another order.

    Args:
        a: An array.
        b: Another array.
        count: The number of blocks.
        are_equal: Compares two blocks.
    """
    for axis in {0, a.ndim - 1} if a.ndim else ():
        if a.shape != b.shape or a.shape[axis] % count:
            continue
        blocks_a, blocks_b = np.split(a, count, axis), np.split(b, count, axis)
        order = [
            next((place for place, block_b in enumerate(blocks_b) if are_equal(block_a, block_b)), -1)
            for block_a in blocks_a
        ]
        if sorted(order) == list(range(count)) and order != sorted(order):
            return tuple(order)
    return None
