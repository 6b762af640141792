"""Tests of the data of the page's plots, decoded as its scripts do."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from common.compare import bins
from common.compare.pair import Tolerance
from common.compare.verdict import compare_runs
from common.report.page.page_data import build_page_data
from tests.unit.common.compare.conftest import CHANGED, STEPS, MakeRun

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}


def build_data(*runs: Path) -> dict[str, Any]:
    text = json.dumps(build_page_data(compare_runs(runs, TOLERANCES)), allow_nan=False)
    data: dict[str, Any] = json.loads(text)
    return data


def decode(data: dict[str, Any], index: int) -> np.ndarray:
    kind, _, text = data["arrays"][index].partition(":")
    return np.frombuffer(base64.b64decode(text), f"<{kind}")


def test_a_short_curve_has_full_precision(make_run: MakeRun) -> None:
    data = build_data(make_run("a"), make_run("b"))
    run = data["runs"][0]
    assert run["curves"]["loss"].keys() == {"last"} and "first" not in run
    expected = [1.1 - step / 100 for step in range(1, STEPS + 1)]
    assert decode(data, run["curves"]["loss"]["last"]).tolist() == expected
    assert decode(data, run["x"]["examples"]).tolist() == [32 * step for step in range(1, STEPS + 1)]
    assert data["axes"] == ["step", "examples", "tokens", "seconds"] and data["axis"] == "step"


def test_equal_arrays_are_stored_once(make_run: MakeRun) -> None:
    data = build_data(make_run("a"), make_run("b"))
    assert data["runs"][0]["x"] == data["runs"][1]["x"]
    assert len(data["arrays"]) == len(set(data["arrays"]))


def test_a_long_curve_keeps_its_extremes(make_run: MakeRun, monkeypatch: Any) -> None:
    def spike(rows: list[dict[str, Any]]) -> None:
        rows[6]["loss"] = 99.0

    monkeypatch.setattr(bins, "MAX_BINS", 2 * 5)
    monkeypatch.setattr(bins, "MIN_BINS", 1)
    data = build_data(make_run("a", change=spike), make_run("b"))
    loss = {key: decode(data, index) for key, index in data["runs"][0]["curves"]["loss"].items()}
    assert decode(data, data["runs"][0]["first"]).tolist() == [1, 5, 9, 13, 17]
    assert decode(data, data["runs"][0]["x"]["step"]).tolist() == [4, 8, 12, 16, 20]
    assert loss["max"][1] == 99 and np.isclose(loss["min"][1], 1.02) and np.isclose(loss["last"][1], 1.02)
    assert np.isclose(loss["mean"][1], (1.05 + 1.04 + 99 + 1.02) / 4)
    difference = decode(data, data["pairs"][0]["loss"])
    assert np.isclose(difference[1], 99 - 1.03) and np.count_nonzero(difference) == 1
    assert data["pairs"][0]["identical"] == STEPS - 1 and data["pairs"][0]["beyond"] == {"loss": 7, "grad_norm": None}


def test_short_curves_leave_room_to_long_ones() -> None:
    largest, smallest = bins.MAX_BINS, bins.MIN_BINS
    for lengths in ([], [0], [largest], [largest // 2, largest // 2]):
        assert bins.choose_bins(lengths) >= max(lengths, default=0)
    assert bins.choose_bins([largest + 1]) == largest
    assert bins.choose_bins([largest, largest]) == largest // 2
    assert bins.choose_bins([largest, 100]) == largest - 100
    assert bins.choose_bins([10**6] * 100) == smallest


def test_bins_cover_every_row_once() -> None:
    for rows in (0, 1, 4, 5, 7, 1000):
        first = bins.find_first_rows(rows, 5)
        last = bins.find_last_rows(first, rows)
        covered = [row for a, b in zip(first, last, strict=True) for row in range(a, b + 1)]
        assert covered == list(range(rows))


def test_a_value_that_is_not_finite(make_run: MakeRun) -> None:
    def overflow(rows: list[dict[str, Any]]) -> None:
        rows[3]["loss"] = float("nan")

    data = build_data(make_run("a"), make_run("b", change=overflow))
    assert np.isnan(decode(data, data["runs"][1]["curves"]["loss"]["last"])[3])
    assert np.isinf(decode(data, data["pairs"][0]["loss"])[3])


def test_events_of_a_run_are_marked(make_run: MakeRun) -> None:
    changed = make_run("b", replicas_changed=CHANGED, resumed_from=7, restarts=1, status="interrupted")
    data = build_data(make_run("a", resumed_from=0), changed)
    assert data["runs"][0]["marks"] == []
    assert [(mark["step"], mark["text"]) for mark in data["runs"][1]["marks"]] == [
        (8, "3 → 2 replicas"),
        (15, "2 → 4 replicas"),
        (8, "resumed, restarted 1 time"),
        (STEPS, "interrupted"),
    ]


def test_a_change_of_framework_is_marked_and_noted(make_run: MakeRun) -> None:
    trainers = [{"step": 1, "trained_by": "torch ddp"}, {"step": 8, "trained_by": "tf mirrored"}]
    comparison = compare_runs([make_run("a", trained_by=trainers, resumed_from=7)], TOLERANCES)
    (run,) = build_page_data(comparison)["runs"]
    assert [(mark["step"], mark["text"]) for mark in run["marks"]] == [(8, "from here tf mirrored"), (8, "resumed")]
    assert "torch ddp x2: trained by torch ddp from step 1, tf mirrored from step 8" in comparison.notes


def test_curves_of_asynchronous_runs_are_over_examples(make_run: MakeRun, make_asynchronous: MakeRun) -> None:
    data = build_data(make_run("a"), make_run("b"), make_asynchronous("ps"))
    assert data["axis"] == "examples"
    common = {(pair["a"], pair["b"]): pair["common"] for pair in data["pairs"]}
    assert common == {(0, 1): STEPS, (0, 2): 0, (1, 2): 0}
    evals = data["runs"][0]["evals"]
    assert decode(data, evals["seconds"]).tolist() == [1.0] and decode(data, evals["accuracy"]).tolist() == [0.5]


def test_a_run_without_rows(make_run: MakeRun) -> None:
    empty = make_run("b", change=lambda rows: rows.clear())
    data = build_data(make_run("a"), empty)
    assert len(decode(data, data["runs"][1]["curves"]["loss"]["last"])) == 0
