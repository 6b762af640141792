"""Recurrences that a class of the user computes: the order of their gates, and other variants of them.

A is the reference run of a diagnosis, and B the run that is compared with it. The states of such a class are
the output of no layer, so they are computed again from its weights and from an earlier array, the sequence.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice, permutations, product
from math import factorial

import numpy as np
from scipy.special import expit

from common.diagnose.explain.activation_difference import ACTIVATIONS, LEAST_ELEMENTS
from common.diagnose.explain.code_section import CodeSection
from common.diagnose.explain.gates import GATES, LSTM_GATES, describe_order
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

MOST_TOKENS = 256  # largest length of a sequence; the search in longer ones takes long
MOST_CELLS, MOST_SEQUENCES = 8, 3  # largest numbers of cells and of sequences, whose pairs are all tried
MOST_MULTIPLICATIONS = 4e9  # limit of the search in one section; cells and sequences beyond it are left out
STEP_OVERHEAD = 30_000  # number of multiplications that take as long as the rest of a step
GATE_ACTIVATIONS = {"sigmoid": expit, "hard sigmoid": ACTIVATIONS["hard sigmoid"]}


@dataclass(frozen=True)
class Cell:
    """Weights of a recurrent cell in float64. Each consists of equal blocks along its first axis, one for each gate.

    Attributes:
        weight_ih: The matrix [gates * units, features] that multiplies a token.
        weight_hh: The matrix [gates * units, units] that multiplies the state.
        bias_ih: The bias of the product with a token.
        bias_hh: The bias of the product with the state.
    """

    weight_ih: np.ndarray
    weight_hh: np.ndarray
    bias_ih: np.ndarray
    bias_hh: np.ndarray

    @property
    def gates(self) -> str:
        """The gates as PyTorch names and orders them."""
        return GATES[len(self.weight_hh) // self.weight_hh.shape[1]]

    def reorder(self, order: tuple[int, ...]) -> "Cell":
        """Return the cell in PyTorch's order of gates: its k-th block is block order[k]."""
        arrays = (np.split(getattr(self, field.name), len(order)) for field in fields(self))
        return Cell(*(np.concatenate([blocks[index] for index in order]) for blocks in arrays))


@dataclass(frozen=True)
class Variant:
    """A way to compute a recurrence. Reports use the names of the attributes.

    Attributes:
        order: The order of the gates, such as "i, f, g, o".
        activation: The activation of the gates that are between 0 and 1.
        forget_bias: The term that an LSTM adds to the argument of its forget gate.
        output: Whether an LSTM returns tanh of its memory or the memory itself, times the output gate.
        reset: Whether a GRU multiplies the state or the product with it by the reset gate.
        update: Whether the update gate of a GRU is the share of the old state or of the new one.
    """

    order: str
    activation: str = "sigmoid"
    forget_bias: str = "0"
    output: str = "tanh of the memory"
    reset: str = "after the product"
    update: str = "the share of the old state"


@np.errstate(all="ignore")
def explain_recurrence(section: CodeSection) -> Explanation | None:
    """Explain the difference of two recurrences whose states are A's and B's array. Return None if A's is not found."""
    a, b = section.a, section.b
    if a.ndim not in (2, 3) or a.size < LEAST_ELEMENTS:
        return None
    left = MOST_MULTIPLICATIONS
    for name, cell in islice(list_cells(section.weights, a.shape[-1]), MOST_CELLS):
        for x in _list_sequences(section, cell.weight_ih.shape[1]):
            multiplications = _count_multiplications(cell, x, is_last=a.ndim == 2)
            if multiplications > left:
                continue
            left -= multiplications
            variant_a = find_variant(cell, x, a)
            variant_b = find_variant(cell, x, b) if variant_a else None
            if variant_a and variant_b and variant_a != variant_b:
                return _compare(f"{section.place}: the recurrence of {name}", variant_a, variant_b)
    return None


def _compare(title: str, a: Variant, b: Variant) -> Explanation:
    if a.order != b.order:
        return Explanation("gate_order", f"{title}: the gates are {a.order} in A and {b.order} in B")
    name = next(field.name for field in fields(a) if getattr(a, field.name) != getattr(b, field.name))
    values = f"{getattr(a, name)} in A and {getattr(b, name)} in B"
    return Explanation("recurrent_layer", f"{title}: its {name.replace('_', ' ')} is {values}")


def _count_multiplications(cell: Cell, x: np.ndarray, is_last: bool) -> float:
    """Return the number of multiplications of the search for a variant.

    If only the last state is known, every variant must process all tokens of one example. Otherwise the first token is
    enough to reject nearly all variants.
    """
    variants = factorial(len(cell.gates)) * len(list(_list_variants(cell.gates, "")))
    examples, tokens, _ = x.shape
    steps = variants * (tokens if is_last else 1) + examples * tokens
    return steps * (cell.weight_ih.size + cell.weight_hh.size + STEP_OVERHEAD)


def _list_sequences(section: CodeSection, features: int) -> Iterator[np.ndarray]:
    """Yield the earlier arrays [n, tokens, features], the latest first, and their first tokens for a single state."""
    a = section.a
    sequences = [
        array
        for _, array in reversed(section.shared_terms)
        if array.ndim == 3 and len(array) == len(a) and array.shape[2] == features and array.shape[1] <= MOST_TOKENS
    ]
    for array in sequences[:MOST_SEQUENCES]:
        if a.ndim == 2:
            yield from (array[:, :1], array)
        elif a.shape[1] == array.shape[1]:
            yield array


def list_cells(weights: Mapping[str, np.ndarray], units: int) -> Iterator[tuple[str, Cell]]:
    """Yield the names and weights of LSTM and GRU cells whose weights belong to one class or to its linear layers.

    A cell may also have a single matrix, which multiplies the concatenation of the token and the state.
    """
    modules: dict[str, dict[str, np.ndarray]] = {}
    for name, array in weights.items():
        parts = re.split(r"[./]", name)
        for depth in (1, 2):
            if len(parts) > depth:
                modules.setdefault(".".join(parts[:-depth]), {})[name] = array
    for module, arrays in modules.items():
        for count in GATES:
            for cell in _build_cells(list(arrays.values()), count * units, units):
                yield module, cell


def _build_cells(arrays: Sequence[np.ndarray], size: int, units: int) -> Iterator[Cell]:
    """Yield the cells whose weights the arrays may be. `size` is the number of rows of all gates."""
    bias_shapes = ((size,), (2, size))
    biases = [row for array in arrays if array.shape in bias_shapes for row in array.reshape(-1, size)]
    matrices = [_orient(array, size) for array in arrays if array.ndim == 2 and array.shape not in bias_shapes]
    if len(biases) > 2 or any(size not in array.shape for array in arrays):
        return
    bias_ih, bias_hh = (*biases, np.zeros(size), np.zeros(size))[:2]
    if len(matrices) == 1 and matrices[0].shape[1] > units:
        (joined,) = matrices
        yield _create_cell(joined[:, :-units], joined[:, -units:], bias_ih, bias_hh)
        yield _create_cell(joined[:, units:], joined[:, :units], bias_ih, bias_hh)
    elif len(matrices) == 2:
        first, second = matrices
        if second.shape[1] == units:
            yield _create_cell(first, second, bias_ih, bias_hh)
        if first.shape[1] == units:
            yield _create_cell(second, first, bias_hh, bias_ih)


def _create_cell(*weights: np.ndarray) -> Cell:
    """Return the cell with these weights in float64, the precision of the states, so that no step converts them."""
    return Cell(*(weight.astype(np.float64) for weight in weights))


def _orient(matrix: np.ndarray, size: int) -> np.ndarray:
    """Return a matrix as [size, inputs], even if it is stored as [inputs, size]."""
    return matrix if len(matrix) == size else matrix.T


def find_variant(cell: Cell, x: np.ndarray, result: np.ndarray) -> Variant | None:
    """Return the variant of a recurrence that computes the states [n, tokens, units], or the last one [n, units]."""
    for order in permutations(range(len(cell.gates))):
        reordered = cell.reorder(order)
        for variant in _list_variants(cell.gates, describe_order(order)):
            if _computes(reordered, variant, x[:1], result[:1]) and _computes(reordered, variant, x, result):
                return variant
    return None


def _computes(cell: Cell, variant: Variant, x: np.ndarray, result: np.ndarray) -> bool:
    """Check whether a variant computes the result. If all states are known, check the first token alone first."""
    if result.ndim == 2:
        return is_close(compute_states(cell, x, variant)[:, -1], result)
    first = compute_states(cell, x[:, :1], variant)
    return is_close(first, result[:, :1]) and is_close(compute_states(cell, x, variant), result)


def _list_variants(gates: str, order: str) -> Iterator[Variant]:
    """Yield the variants of one order of the gates."""
    if gates == LSTM_GATES:
        for activation, bias, output in product(GATE_ACTIVATIONS, ("0", "1"), (Variant.output, "the memory")):
            yield Variant(order, activation, forget_bias=bias, output=output)
        return
    for activation, reset, update in product(
        GATE_ACTIVATIONS, (Variant.reset, "before the product"), (Variant.update, "the share of the new state")
    ):
        yield Variant(order, activation, reset=reset, update=update)


def compute_states(cell: Cell, x: np.ndarray, variant: Variant) -> np.ndarray:
    """Compute the states [n, tokens, units] of a cell in PyTorch's order of gates."""
    state = memory = np.zeros((len(x), cell.weight_hh.shape[1]))
    states = []
    for token in (x @ cell.weight_ih.T + cell.bias_ih).swapaxes(0, 1):
        if cell.gates == LSTM_GATES:
            state, memory = _step_lstm(cell, token, state, memory, variant)
        else:
            state = _step_gru(cell, token, state, variant)
        states.append(state)
    return np.stack(states, 1)


def _step_lstm(
    cell: Cell, token: np.ndarray, state: np.ndarray, memory: np.ndarray, variant: Variant
) -> tuple[np.ndarray, np.ndarray]:
    """Return the next state and memory of an LSTM, given the product of its weight with a token."""
    activate = GATE_ACTIVATIONS[variant.activation]
    i, f, g, o = np.split(token + state @ cell.weight_hh.T + cell.bias_hh, 4, axis=1)
    memory = activate(f + float(variant.forget_bias)) * memory + activate(i) * np.tanh(g)
    return activate(o) * (np.tanh(memory) if variant.output == Variant.output else memory), memory


def _step_gru(cell: Cell, token: np.ndarray, state: np.ndarray, variant: Variant) -> np.ndarray:
    """Return the next state of a GRU, given the product of its weight with a token."""
    activate = GATE_ACTIVATIONS[variant.activation]
    product_of_state = state @ cell.weight_hh.T + cell.bias_hh
    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = (np.split(y, 3, axis=1) for y in (token, product_of_state))
    reset, update = activate(reset_x + reset_h), activate(update_x + update_h)
    if variant.reset != Variant.reset:
        units = state.shape[1]
        new_h = (reset * state) @ cell.weight_hh[-units:].T + cell.bias_hh[-units:]
    new = np.tanh(new_x + (reset * new_h if variant.reset == Variant.reset else new_h))
    old_share = update if variant.update == Variant.update else 1 - update
    return old_share * state + (1 - old_share) * new
