"""Recurrences of own classes: the order of gates and other variants."""

from dataclasses import replace

import numpy as np
import pytest

from common.diagnose.explain import own_recurrence
from common.diagnose.explain.code_section import CodeSection, LayerOutput
from common.diagnose.explain.gates import compute_gru_states, compute_lstm_states
from common.diagnose.explain.own_recurrence import Cell, Variant, compute_states, explain_recurrence, list_cells

STREAM = np.random.default_rng(0)
X, UNITS = STREAM.standard_normal((3, 5, 3)), 4
LSTM, GRU = Variant("i, f, g, o"), Variant("r, z, n")


def draw_cell(count: int) -> Cell:
    shapes = (count * UNITS, 3), (count * UNITS, UNITS), (count * UNITS,), (count * UNITS,)
    return Cell(*(STREAM.standard_normal(shape) for shape in shapes))


CELLS = {4: draw_cell(4), 3: draw_cell(3)}


def name_weights(cell: Cell, style: str) -> dict[str, np.ndarray]:
    """Return the weights as a class with linear layers, with parameters of its own, or with one matrix has them."""
    if style == "linear layers":
        names = ("cell.x.weight", "cell.h.weight", "cell.x.bias", "cell.h.bias")
        return dict(zip(names, vars(cell).values(), strict=True))
    if style == "parameters":
        return {
            "cell.w": cell.weight_ih.T,
            "cell.u": cell.weight_hh.T,
            "cell.bias": np.stack([cell.bias_ih, cell.bias_hh]),
        }
    joined = np.concatenate([cell.weight_ih, cell.weight_hh], 1)
    return {"cell.kernel": joined.T, "cell.bias": cell.bias_ih, "cell.other_bias": cell.bias_hh}


@pytest.mark.parametrize("style", ["linear layers", "parameters", "one matrix"])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize(
    ("count", "order", "change", "words"),
    [
        (4, (0, 1, 3, 2), {}, "the gates are i, f, g, o in A and i, f, o, g in B"),
        (4, (0, 1, 2, 3), {"forget_bias": "1"}, "its forget bias is 0 in A and 1 in B"),
        (3, (1, 0, 2), {}, "the gates are r, z, n in A and z, r, n in B"),
        (3, (0, 1, 2), {"update": "the share of the new state"}, "its update is the share of the old state in A"),
        (3, (0, 1, 2), {"reset": "before the product"}, "its reset is after the product in A"),
    ],
)
def test_the_variant_is_named(
    style: str, is_last: bool, count: int, order: tuple[int, ...], change: dict[str, str], words: str
) -> None:
    cell, variant = CELLS[count], {4: LSTM, 3: GRU}[count]
    a, b = compute_states(cell, X, variant), compute_states(cell.reorder(order), X, replace(variant, **change))
    if is_last:
        a, b = a[:, -1], b[:, -1]
    section = CodeSection("input", "head", a, b, [LayerOutput("embedding", X)], {}, name_weights(cell, style))
    explanation = explain_recurrence(section)
    assert explanation is not None
    assert explanation.cause == ("recurrent_layer" if change else "gate_order")
    assert words in explanation.sentence
    assert explain_recurrence(replace(section, b=b + 1e-3)) is None


@pytest.mark.parametrize("count", [4, 3])
def test_states_are_those_of_the_frameworks(count: int) -> None:
    cell = CELLS[count]
    expected = {4: compute_lstm_states, 3: compute_gru_states}[count](X, *vars(cell).values())
    np.testing.assert_allclose(compute_states(cell, X, {4: LSTM, 3: GRU}[count]), expected, rtol=1e-12)


def test_weights_are_converted_once() -> None:
    weights = {name: array.astype(np.float32) for name, array in name_weights(CELLS[4], "linear layers").items()}
    arrays = [array for _, cell in list_cells(weights, UNITS) for array in vars(cell).values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.float64)}


@pytest.mark.parametrize(("units", "tokens"), [(256, 200), (4, 5)])
def test_a_search_that_takes_long_is_left_out(monkeypatch: pytest.MonkeyPatch, units: int, tokens: int) -> None:
    """A last state is compared with that of all tokens if this is fast, and otherwise with that of the first token."""
    steps = []

    def step(cell: Cell, token: np.ndarray, state: np.ndarray, *_: object) -> tuple[np.ndarray, np.ndarray]:
        steps.append(len(token))
        return state, state

    monkeypatch.setattr(own_recurrence, "_step_lstm", step)
    x, a = np.zeros((2, tokens, 1)), np.ones((2, units))
    weights = {"cell.x.weight": np.zeros((4 * units, 1)), "cell.h.weight": np.zeros((4 * units, units))}
    section = CodeSection("input", "head", a, a + 1, [LayerOutput("embedding", x)], {}, weights)
    assert explain_recurrence(section) is None
    variants = 24 * 8
    assert len(steps) == variants * (1 if tokens == 200 else 1 + tokens)


def test_all_searches_of_a_section_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each cell alone stay below the bound."""
    cells = []
    monkeypatch.setattr(own_recurrence, "find_variant", lambda cell, *_: cells.append(cell))
    monkeypatch.setattr(own_recurrence, "_list_sequences", lambda *_: [X])
    weights = {
        f"cell{i}.{name}": array for i in range(3) for name, array in name_weights(CELLS[4], "parameters").items()
    }
    cost = own_recurrence._count_multiplications(CELLS[4], X, is_last=True)
    section = CodeSection("input", "head", X[:, 0], X[:, 0], [], {}, weights)
    monkeypatch.setattr(own_recurrence, "MOST_MULTIPLICATIONS", 2.5 * cost)
    a = np.ones((3, UNITS))
    assert explain_recurrence(replace(section, a=a, b=a)) is None
    assert len(cells) == 2


def test_a_feed_forward_network_is_no_recurrence() -> None:
    """Its two matrices have the shapes of an LSTM's; they multiply other arrays."""
    x = STREAM.standard_normal((3, 5, UNITS))
    weights = {
        "mlp.up.weight": STREAM.standard_normal((16, UNITS)),
        "mlp.down.weight": STREAM.standard_normal((UNITS, 16)),
    }
    a = np.maximum(x @ weights["mlp.up.weight"].T, 0) @ weights["mlp.down.weight"].T
    assert (
        explain_recurrence(CodeSection("input", "head", a, a + x, [LayerOutput("embedding", x)], {}, weights)) is None
    )
