"""Tests of reading rows: Arrow and the reader by row agree, and unusual rows take the reader by row."""

from pathlib import Path

import numpy as np
import pytest

from common.compare import columns
from common.compare.columns import read_columns
from common.compare.matched_steps import compute_differences
from common.compare.pair import Tolerance
from common.compare.runs import load_runs
from common.compare.verdict import compare_runs
from common.errors import UserError
from tests.unit.common.compare.conftest import STEPS, MakeRun

CLEAN = '{"step": 1, "loss": 0.1}\n{"step": 2, "loss": 2}\n{"step": 4, "loss": 1e-320, "seconds": 3.5}\n'


def read(tmp_path: Path, text: str) -> tuple[list[int], list[float], list[float], list[int], list[str]]:
    file, notes = tmp_path / "metrics.jsonl", list[str]()
    file.write_text(text)
    steps, table, repeated = read_columns(file, ("loss",), notes, ("seconds",))
    return steps.tolist(), table["loss"].tolist(), table["seconds"].tolist(), repeated, notes


def test_both_readers_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = read(tmp_path, CLEAN)
    monkeypatch.setattr(columns, "_read_with_arrow", lambda *_: None)
    assert repr(read(tmp_path, CLEAN)) == repr(fast)
    assert repr(fast) == "([1, 2, 4], [0.1, 2.0, 1e-320], [nan, nan, 3.5], [], [])"


def test_a_clean_file_is_read_by_arrow_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(columns, "_read_by_row")
    assert read(tmp_path, CLEAN)[0] == [1, 2, 4]


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == ([], [], [], [], [])


@pytest.mark.parametrize("value", ["null", "NaN"])
def test_a_value_that_is_not_a_number(tmp_path: Path, value: str) -> None:
    assert np.isnan(read(tmp_path, f'{{"step": 1, "loss": {value}}}\n')[1][0])


def test_the_last_row_of_a_step_counts(tmp_path: Path) -> None:
    steps, loss, _, repeated, _ = read(tmp_path, CLEAN + '{"step": 2, "loss": 5.0}\n{"step": 3, "loss": 6.0}\n')
    assert (steps, loss[1:3], repeated) == ([1, 2, 3, 4], [5.0, 6.0], [2])


def test_an_unfinished_last_line_is_left_out(tmp_path: Path) -> None:
    steps, *_, notes = read(tmp_path, CLEAN + '{"step": 5, "lo')
    assert steps == [1, 2, 4] and notes == [f"{tmp_path / 'metrics.jsonl'}:4: incomplete last line left out"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"step": 5, "loss": "1"}', "'loss' must be a number, found '1'"),
        ('{"step": 5}', "'loss' is missing; it must be a number"),
        ('{"step": 5.5, "loss": 1}', "a row must be a JSON object with a whole number 'step', found 5.5"),
        ('{"step": -1, "loss": 1}', "a row must be a JSON object with a whole number 'step', found -1"),
        ("[]", "a row must be a JSON object with a whole number 'step', found None"),
        ('{"step": 5, "loss": true}', "'loss' must be a number, found True"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        read(tmp_path, CLEAN + row + "\n" + CLEAN)
    assert str(raised.value) == f"{tmp_path / 'metrics.jsonl'}:4: {message}"


def test_runs_share_equal_arrays(make_run: MakeRun) -> None:
    (a, b), _ = load_runs([make_run("a"), make_run("b", change=lambda rows: rows[3].update(loss=7.0))])
    assert b.steps is a.steps and b.metrics["examples"] is a.metrics["examples"]
    assert b.metrics["loss"] is not a.metrics["loss"] and b.metrics["loss"][3] == 7


def test_computing_differences_does_not_change_the_runs(make_run: MakeRun) -> None:
    (a, b), _ = load_runs([make_run("a"), make_run("b", change=lambda rows: rows.pop(0))])
    before = {name: column.copy() for name, column in a.metrics.items()}
    steps, loss, norm = compute_differences(a, b)
    assert steps.tolist() == list(range(2, STEPS + 1)) and not loss.any() and not norm.any()
    assert all(np.array_equal(a.metrics[name], before[name]) for name in before)


def test_identical_steps_are_counted(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", change=lambda rows: rows[3].update(loss=rows[3]["loss"] + 1e-9))]
    pair = compare_runs(runs, {"float32": Tolerance(1e-5, 1e-4)}).pairs[0]
    assert (pair.verdict, pair.identical_steps, pair.steps) == ("lockstep", STEPS - 1, STEPS)
