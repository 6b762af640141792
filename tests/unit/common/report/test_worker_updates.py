"""Tests of the timelines of workers and of the loss of stale updates."""

import re
from typing import Any

import numpy as np
import pytest

from common.compare.pair import Tolerance
from common.compare.runs import Run, load_run
from common.compare.verdict import compare
from common.report.page.render import render_html
from common.report.tables import build_staleness_tables
from common.report.worker_updates import MAX_ROWS, NEIGHBOURS, build_worker_timelines, compute_excess_losses
from tests.unit.common.compare.conftest import STEPS, MakeRun


@pytest.fixture
def run(make_asynchronous: MakeRun) -> Run:
    return load_run(make_asynchronous("a"))


def set_updates(run: Run, losses: Any, staleness: Any) -> Run:
    run.steps = np.arange(1, len(losses) + 1)
    run.metrics = {name: np.arange(1.0, len(losses) + 1) for name in run.metrics} | {"loss": np.asarray(losses)}
    run.updates = {"worker": np.arange(len(losses)) % 2.0, "staleness": np.asarray(staleness, dtype=float)}
    return run


def read_heights(path: str) -> np.ndarray:
    """Return the height of each bar of an SVG path."""
    end = int(re.findall(r"H(\d+)V1Z", path)[0])
    corners = [(int(place), 1 - float(level)) for place, level in re.findall(r"H(\d+)V([\d.e-]+)(?=H)", path)]
    places = [place for place, _ in corners] + [end]
    return np.concatenate([[height] * (b - a) for (a, height), b in zip(corners, places[1:], strict=True)])


def test_updates_of_each_worker_over_the_time(run: Run) -> None:
    (timeline,) = build_worker_timelines([run])
    assert [lane.name for lane in timeline.lanes] == ["worker 0", "worker 1"]
    assert (timeline.index, timeline.seconds) == (0, 2 * STEPS / 40)
    for lane in timeline.lanes:
        assert lane.text == f"{STEPS} updates, longest pause 0.05 s"
        assert np.count_nonzero(read_heights(lane.path)) == STEPS


def test_a_worker_that_paused_has_a_gap(run: Run) -> None:
    run = set_updates(run, np.ones(4000), np.zeros(4000))
    run.updates["worker"][1000:3000] = 1.0
    first, second = build_worker_timelines([run])[0].lanes
    assert "longest pause 2e+03 s" in first.text
    bars = read_heights(first.path)
    assert not bars[len(bars) // 4 + 1 : 3 * len(bars) // 4 - 1].any() and bars[:50].all() and bars[-50:].all()
    assert read_heights(second.path).all()


def test_a_stale_update_is_compared_with_its_neighbours(run: Run) -> None:
    staleness = np.arange(2000) % 2
    trend = np.linspace(3, 1, 2000)
    excesses = compute_excess_losses(set_updates(run, trend + 0.1 * staleness, staleness))
    assert [(excess.staleness, excess.updates) for excess in excesses] == [("0", 1000), ("1", 1000)]
    np.testing.assert_allclose([excess.loss for excess in excesses], [-0.05, 0.05], atol=0.1 / NEIGHBOURS)
    assert all(excess.standard_error is not None and excess.standard_error < 1e-3 for excess in excesses)


def test_many_values_share_a_row(run: Run) -> None:
    staleness = np.arange(400) % 40
    excesses = compute_excess_losses(set_updates(run, np.ones(400), staleness))
    assert len(excesses) == MAX_ROWS and excesses[-1].staleness == f"{MAX_ROWS - 1} to 39"
    assert sum(excess.updates for excess in excesses) == 400


def test_a_synchronous_run_has_no_timeline_and_no_table(make_run: MakeRun) -> None:
    run = load_run(make_run("a"))
    assert run.updates == {} and build_worker_timelines([run]) == [] and build_staleness_tables([run]) == []


def test_the_page_has_a_lane_for_each_worker_and_a_table(run: Run, make_run: MakeRun) -> None:
    page = render_html(compare([load_run(make_run("b")), run], {"float32": Tolerance(1e-5, 1e-4)}))
    assert page.count('<div class="lane">') == 2 and "Loss against staleness" in page
    (table,) = build_staleness_tables([run])
    assert [row[:3] for row in table.rows] == [[run.label, "0", "1"], [run.label, "1", f"{2 * STEPS - 1}"]]


def test_rows_without_workers_are_read(make_asynchronous: MakeRun, make_run: MakeRun) -> None:
    run = load_run(make_run("old", strategy="parameter_server"))
    assert np.isnan(run.updates["worker"]).all() and build_worker_timelines([run]) == []
