"""Find the formulas of CTC and of embeddings that reproduce the losses of a record."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.losses.ctc_formulas import list_ctc_formulas
from common.diagnose.recorded.losses.script_formulas import find_script_formulas

STREAM = np.random.default_rng(0)
CTC = {"name": "ctc_loss", "arguments": {"blank": 0}}


def make_side(
    calls: list[np.ndarray], losses: list[float], labels: dict[str, np.ndarray] | None = None, loss: Any = None
) -> Any:
    """Return a side with the outputs of the calls and the labels in each step, and a loss for each step."""
    record = SimpleNamespace(
        steps=range(1, len(losses) + 1),
        facts={"loss": loss},
        get_step_facts=lambda step: [{"losses": [losses[step - 1]]}],
    )
    batches = SimpleNamespace(
        list_micro_batches=lambda step: [(0, 0)],
        count_rows=lambda *place: [len(call) for call in calls],
        read_call=lambda step, rank, number, kind, call: {"0": calls[call]},
        read_micro_batch=lambda *place: labels or {},
    )
    return SimpleNamespace(record=record, batches=batches)


def compute_triplet(calls: list[np.ndarray], margin: float) -> float:
    anchor, positive, negative = calls
    near, far = (((anchor - x) ** 2).sum(1) for x in (positive, negative))
    return float(np.maximum(near - far + margin, 0).mean())


@pytest.mark.parametrize(("later", "is_found"), [(1.0, True), (0.0, False)])
def test_one_loss_other_than_0_is_no_evidence_of_a_margin(later: float, is_found: bool) -> None:
    calls = list(STREAM.standard_normal((3, 6, 4)))
    loss = compute_triplet(calls, 0.5)
    names = find_script_formulas(make_side(calls, [loss, later * loss]), 1, "float64")
    assert names == (["the triplet loss of squared distances of embeddings with the margin 0.5, mean"] * is_found)


def test_a_loss_of_0_excludes_the_formulas_of_other_values() -> None:
    calls = list(STREAM.standard_normal((3, 6, 4)))
    loss = compute_triplet(calls, 0.5)
    assert find_script_formulas(make_side(calls, [loss, loss, 0.0]), 1, "float64") == []


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("input_lengths", [0, 5]),
        ("input_lengths", [6, 5]),
        ("input_lengths", [5.0, 4.0]),
        ("target_lengths", [-1, 2]),
        ("target_lengths", [3, 2]),
        ("target_lengths", [[1, 2]]),
    ],
)
def test_lengths_that_do_not_fit_have_no_formulas(name: str, lengths: list[Any]) -> None:
    outputs, labels = STREAM.standard_normal((2, 5, 4)), np.array([[1, 2], [3, 3]])
    loss = dict(list_ctc_formulas(outputs, labels, {}, 0))["ctc, sum"]
    assert find_script_formulas(make_side([outputs], [loss], {"y": labels}, CTC), 1, "float64") == ["ctc, sum"]
    part = {"y": labels, name: np.array(lengths)}
    assert find_script_formulas(make_side([outputs], [loss], part, CTC), 1, "float64") == []
    empty = {"y": labels[:, :0]}
    assert find_script_formulas(make_side([outputs], [loss], empty, CTC), 1, "float64") == []
