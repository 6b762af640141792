"""Tests of the order in which the code between two layers is explained."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.explain.code_section import CodeSection, LayerOutput
from common.diagnose.findings import Explanation
from common.diagnose.recorded import code_explanations
from common.diagnose.recorded.code_explanations import explain_recorded_code

IDS = np.array([[5, 7, 0, 0], [3, 1, 4, 2], [6, 1, 9, 8]])
X = np.random.default_rng(0).normal(size=(3, 5))
OPERATION = Explanation("operation", "head: B computes exp", confirmed=False)


def explain(
    b: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    masks: tuple[bool, bool] = (False, False),
    shared: str = "",
    **of: Explanation,
) -> list[tuple[str, str, bool]]:
    """Explain code after a layer that returns X, and whose tanh A computes.

    Args:
        b: What B's code computes.
        monkeypatch: Replaces the functions that read operations.
        masks: Whether the embeddings of A and B mask the id 0.
        shared: Words for a weight that B uses more often.
        of: What the functions that read operations return, by their names.
    """
    functions: dict[str, Explanation | None] = {"explain_passed_states": None, "explain_operations": None, **of}
    for name, value in functions.items():
        monkeypatch.setattr(code_explanations, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(code_explanations, "add_lines", lambda explanation, *_: explanation)
    monkeypatch.setattr(
        code_explanations, "describe_shared_weights", lambda pair, side, lacks_uses: shared if side == "b" else ""
    )
    pair: Any = SimpleNamespace(
        sides=[SimpleNamespace(layers=[{"path": "embed", "attributes": {"mask_zero": x}}]) for x in masks]
    )
    outputs = [LayerOutput("lstm", X)]
    section = CodeSection("input of head", "head", np.tanh(X), b, outputs, {"ids": IDS})
    explanations = explain_recorded_code(pair, section, ("a", "b"), [IDS], np.allclose)
    return [(known.cause, known.sentence, known.confirmed) for known in explanations]


PADDED = np.where(np.arange(3)[:, None] == 0, np.cos(X) ** 3, np.tanh(X))


def test_a_mask_or_a_passed_state_is_the_only_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    ((cause, _, confirmed),) = explain(PADDED, monkeypatch, masks=(True, False))
    assert (cause, confirmed) == ("mask_zero", True)
    state = Explanation("recurrent_layer", "call 2 of lstm: A passes no state")
    assert explain(X, monkeypatch, explain_passed_states=state) == [("recurrent_layer", state.sentence, True)]


def test_a_formula_that_explains_the_numbers_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    ((cause, _, confirmed),) = explain(X, monkeypatch, explain_operations=OPERATION, shared="B uses w 2 times")
    assert (cause, confirmed) == ("activation", True)


@pytest.mark.parametrize("shared", ["", "B uses w 2 times, and the other script 1"])
def test_operations_shared_weights_and_padding_are_added_up(shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ((cause, sentence, confirmed),) = explain(PADDED, monkeypatch, explain_operations=OPERATION, shared=shared)
    assert (cause, confirmed) == ("padded_examples", True)
    assert "the examples without padding are equal, and 1 of 1 with padding differ: " in sentence
    assert sentence.endswith("B computes exp" + (f"; {shared}" if shared else ""))
    ((cause, sentence, _),) = explain(np.cos(X) ** 3, monkeypatch, shared=shared)
    assert cause == "code_between_layers" and sentence.endswith(shared)
