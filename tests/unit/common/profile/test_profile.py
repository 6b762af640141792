"""Tests of the profile of a run and of its charts."""

import gzip
import json
from pathlib import Path

import pytest

from common.compare.runs import load_run
from common.profile.lanes import Lane, LaneSpan
from common.profile.profile import FILE, Profile, read_profile
from common.report.bars import build_bar_charts
from common.report.step_chart import PLAIN_COLOUR, build_step_chart
from tests.unit.common.compare.conftest import MakeRun, write_profile
from tests.unit.common.profile.test_lanes import STEP, TENSORFLOW


def test_profiles_of_both_frameworks(make_run: MakeRun) -> None:
    torch, tf = make_run("a"), make_run("b", framework="tf", strategy="mirrored")
    write_profile(torch, STEP)
    write_profile(tf, TENSORFLOW)
    runs = [load_run(torch), load_run(tf), load_run(make_run("without"))]
    assert [run.profile is not None for run in runs] == [True, True, False]
    chart = next(chart for chart in build_bar_charts(runs) if chart.title == "Time of a step")
    assert [index for index, _ in chart.groups] == [0, 1]
    names = ["forward", "backward", "update", "reduce, exposed", "reduce, hidden", "other"]
    for _, bars in chart.groups:
        assert [bar.name for bar in bars] == names
        shares = {bar.name: bar.end for bar in bars}
        assert sum(shares.values()) - shares["reduce, hidden"] == pytest.approx(1)
        assert shares["reduce, exposed"] > 0 and shares["reduce, hidden"] > 0


def test_a_layer_has_one_colour() -> None:
    spans = {
        "forward": [("A", 0.0, 4.0), ("brief", 4.0, 4.001), ("B", 4.0, 8.0), ("forward", 8.0, 9.0)],
        "backward": [("B", 10.0, 15.0), ("A", 15.0, 20.0)],
        "reduce": [("reduction 1", 15.0, 21.0)],
        "update": [("update", 21.0, 22.0)],
    }
    lanes: dict[str, Lane] = {name: [LaneSpan(*span) for span in lane] for name, lane in spans.items()}
    chart = build_step_chart(Profile({}, lanes))
    assert chart.milliseconds == 22 and chart.layer_colours == {"A": 0, "B": 1}
    colours = {lane: [(span.name, span.colour) for span in spans] for lane, spans in chart.lanes.items()}
    assert colours["forward"] == [("A", 0), ("B", 1), ("forward", PLAIN_COLOUR)]
    assert colours["backward"] == [("B", 1), ("A", 0)]
    assert colours["reduce"] == [("reduction 1", PLAIN_COLOUR)]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not gzip", id="not gzip"),
        pytest.param(gzip.compress(b"not JSON"), id="not JSON"),
        pytest.param(gzip.compress(b"[1]"), id="a list"),
        pytest.param(gzip.compress(b"[" * 100_000), id="deeply nested"),
        pytest.param(gzip.compress(b'{"traceEvents": [{"ph": "X"}]}'), id="an event without a time"),
        pytest.param(gzip.compress(json.dumps({"traceEvents": STEP}).encode())[:100], id="cut off"),
        pytest.param(gzip.compress(b"x" * 100)[:12] + b"\xff" * 30, id="overwritten"),
    ],
)
def test_a_damaged_file_is_left_out(make_run: MakeRun, content: bytes) -> None:
    run_dir = make_run("a")
    (run_dir / FILE).parent.mkdir()
    (run_dir / FILE).write_bytes(content)
    run = load_run(run_dir)
    assert run.profile is None
    (note,) = run.notes
    assert note.startswith(f"{run_dir / FILE}: left out, since it cannot be read: ") and "\n" not in note


def test_a_rank_that_does_not_train(tmp_path: Path) -> None:
    notes: list[str] = []
    write_profile(tmp_path, [])
    assert read_profile(tmp_path, "torch", notes) is None and not notes
