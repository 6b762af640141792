"""In which order a recurrent layer has its gates."""

from collections.abc import Mapping
from itertools import permutations

import numpy as np
from scipy.special import expit

from common.diagnose.rounding import close

GATES = {4: "ifgo", 3: "rzn"}  # of an LSTM and a GRU, by their number, as PyTorch orders them


def gates_of(name: str, weights: Mapping[str, np.ndarray], x: np.ndarray, returned: np.ndarray) -> str | None:
    """The order in which a layer reads the blocks of its weights, such as "i, f, g, o"; None where none explains it.

    Only of one layer and direction, without masks. name: of the layer. weights: by PyTorch's names. x: [n, tokens,
    features]. returned: the states of all tokens [n, tokens, units], or that of the last.
    """
    found = [weights.get(f"{name}.{role}_l0") for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    arrays = [each for each in found if each is not None]
    if x.ndim != 3 or len(arrays) < len(found):
        return None
    count = len(arrays[1]) // arrays[1].shape[1]
    for order in permutations(range(count)) if count in GATES else ():
        states = {4: lstm_states, 3: gru_states}[count](x, *(_ordered(each, order) for each in arrays))
        if close(states if returned.ndim == 3 else states[:, -1], returned):
            return in_words(order)
    return None


def in_words(order: tuple[int, ...]) -> str:
    """The gates that the blocks of the weights are for. order: the block that each gate reads."""
    gates = dict(zip(order, GATES[len(order)], strict=True))
    return ", ".join(gates[block] for block in sorted(gates))


def _ordered(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    blocks = np.split(array, len(order))
    return np.concatenate([blocks[each] for each in order])


def lstm_states(x: np.ndarray, w: np.ndarray, u: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """torch.nn.LSTM's formulas: states [n, tokens, units]."""
    states, cell, state = [], np.zeros(()), np.zeros((len(x), u.shape[1]))
    for token in x.swapaxes(0, 1):
        i, f, g, o = np.split(token @ w.T + b + state @ u.T + c, 4, axis=1)
        cell = expit(f) * cell + expit(i) * np.tanh(g)
        state = expit(o) * np.tanh(cell)
        states.append(state)
    return np.stack(states, 1)


def gru_states(x: np.ndarray, w: np.ndarray, u: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """torch.nn.GRU's formulas: states [n, tokens, units]."""
    states, state = [], np.zeros((len(x), u.shape[1]))
    for token in x.swapaxes(0, 1):
        (r, z, n), (s, y, m) = np.split(token @ w.T + b, 3, axis=1), np.split(state @ u.T + c, 3, axis=1)
        update = expit(z + y)
        state = (1 - update) * np.tanh(n + expit(r + s) * m) + update * state
        states.append(state)
    return np.stack(states, 1)


def blocks_of(a: np.ndarray, b: np.ndarray, count: int) -> tuple[int, ...] | None:
    """Where B has each block of A, along the first or the last axis; None where B is not A in another order."""
    for axis in {0, a.ndim - 1}:
        if a.shape != b.shape or a.shape[axis] % count:
            continue
        ours, theirs = (np.split(each, count, axis) for each in (a, b))
        order = [next((k for k, other in enumerate(theirs) if np.array_equal(each, other)), -1) for each in ours]
        if sorted(order) == list(range(count)) and order != sorted(order):
            return tuple(order)
    return None
