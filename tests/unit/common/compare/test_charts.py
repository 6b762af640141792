from pathlib import Path
from typing import Any

from common.compare.charts import charts
from common.compare.pair import Tolerance
from common.compare.verdict import compare_runs
from tests.unit.common.compare.conftest import CHANGED, MakeRun

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}
Mark = tuple[float, str, str]


def marks(*runs: Path) -> dict[str, list[Mark]]:
    """Where the charts of curves have vertical lines, with their labels and colours."""
    found = [chart for chart in charts(compare_runs(runs, TOLERANCES)) if "shapes" in chart["layout"]]
    for chart in found:
        assert ("Vertical lines: " in chart["caption"]) is bool(chart["layout"]["shapes"])
    return {chart["title"]: [_mark(shape) for shape in chart["layout"]["shapes"]] for chart in found}


def _mark(shape: dict[str, Any]) -> Mark:
    assert shape["x0"] == shape["x1"]
    return shape["x0"], shape["label"]["text"], shape["line"]["color"]


def test_no_marks_where_nothing_changed(make_run: MakeRun) -> None:
    assert not any(marks(make_run("a"), make_run("b")).values())


def test_a_changed_number_of_replicas_is_marked_in_every_chart_of_curves(make_run: MakeRun) -> None:
    found = marks(make_run("a"), make_run("b", replicas_changed=CHANGED))
    assert list(found) == [
        "Training loss",
        "Loss difference",
        "Gradient norm",
        "Gradient norm difference",
        "Validation loss",
        "Validation accuracy",
    ]
    orange = "#e07b16"  # of the second run
    assert all(each == [(8, "3 → 2", orange), (15, "2 → 4", orange)] for each in found.values())


def test_a_difference_has_the_marks_of_the_reference_too(make_run: MakeRun) -> None:
    found = marks(make_run("a", replicas_changed=CHANGED[:2]), make_run("b", replicas_changed=CHANGED[1:]))
    assert [mark[:2] for mark in found["Loss difference"]] == [(8, "3 → 2"), (15, "2 → 4")]


def test_labels_of_several_runs_do_not_cover_each_other(make_run: MakeRun) -> None:
    runs = [make_run(name, replicas_changed=CHANGED[:2]) for name in ("a", "b")]
    heights = [shape["y1"] for shape in charts(compare_runs(runs, TOLERANCES))[0]["layout"]["shapes"]]
    assert len(set(heights)) == 2


def test_marks_among_asynchronous_runs_are_at_examples(make_run: MakeRun, make_asynchronous: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", replicas_changed=CHANGED[:2])]
    found = marks(*runs, make_asynchronous("c", replicas_changed=CHANGED[1:]))
    assert [mark[:2] for mark in found["Training loss"]] == [(8 * 32, "3 → 2"), (15 * 16, "2 → 4")]
    assert [mark[:2] for mark in found["Loss difference"]] == [(8, "3 → 2")], "its axis is steps"


def test_a_change_at_a_step_that_is_not_there(make_run: MakeRun) -> None:
    run = make_run("a", replicas_changed=CHANGED, change=lambda rows: rows.__delitem__(slice(10, None)))
    assert [mark[:2] for mark in marks(run)["Training loss"]] == [(8, "3 → 2")]
