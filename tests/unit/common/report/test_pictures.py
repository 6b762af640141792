"""Tests of the pictures: which are written, what they show, and that text of users stays text."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from common.compare.__main__ import main
from common.compare.pair import Tolerance
from common.compare.runs import load_run
from common.compare.verdict import Comparison, compare_runs
from common.errors import UserError
from common.report.bars import build_bar_charts
from common.report.lane_plots import draw_step, draw_updates
from common.report.pictures import describe_settings, list_pictures, write_pictures
from common.report.plots import CURVE_BINS, UPDATE_BINS, draw_bars, draw_curves, draw_difference
from common.report.step_chart import build_step_chart
from common.report.worker_updates import build_worker_timelines
from tests.unit.common.compare.conftest import STEPS, MakeRun, write_profile
from tests.unit.common.profile.test_lanes import STEP

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}
CURVES = ["loss", "loss_difference", "grad_norm", "grad_norm_difference"]
CURVES += ["validation_loss", "validation_accuracy", "learning_rate"]
HOSTILE = "</text><script>x</script> $x^{2$ \x1b_\n&" + "y" * 10_000


def diverge(rows: list[dict[str, Any]]) -> None:
    for row in rows[11:]:
        row["loss"] += 0.05


def draw_on_axes(draw: Any, *arguments: Any) -> tuple[Any, list[str]]:
    axes = Figure().subplots()
    return axes, draw(*arguments, axes)


def draw_loss_difference(comparison: Comparison) -> tuple[Any, list[str]]:
    pairs = [(pair.b, pair) for pair in comparison.pairs]
    return draw_on_axes(draw_difference, comparison.runs, pairs, "loss")


@pytest.mark.slow
def test_every_plot_is_written_twice(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run("a"), make_run("b", framework="tf", strategy="mirrored", change=diverge)]
    assert main([*map(str, runs), f"output={tmp_path}/out", f"pictures={tmp_path}/a b"]) == 0
    names = [*CURVES, "throughput", "peak_memory", "time_to_a_loss"]
    printed = [Path(line) for line in capsys.readouterr().out.splitlines() if "/a b/" in line]
    assert printed == [tmp_path / "a b" / f"{name}.{ending}" for name in names for ending in ("png", "svg")]
    for path in printed:
        content = path.read_bytes()
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG") and len(content) > 10_000
        else:
            assert ElementTree.fromstring(content).tag.endswith("svg")
    again = write_pictures(compare_runs(runs, TOLERANCES), tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in printed], "reproducible"
    assert "![The loss of each run](../a%20b/loss.png)" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.slow
def test_profiles_and_workers_are_drawn(make_run: MakeRun, make_asynchronous: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("a")
    write_profile(run_dir, STEP)
    comparison = compare_runs([run_dir, make_asynchronous("b")], TOLERANCES)
    names = {path.stem for path in write_pictures(comparison, tmp_path / "out")}
    assert {"time_of_a_step", "step_1", "updates_2"} <= names and not {"step_2", "updates_1"} & names
    profile = comparison.runs[0].profile
    assert profile
    axes, _ = draw_on_axes(draw_step, build_step_chart(profile))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["forward", "backward", "reduce", "update"]
    assert [len(collection.get_paths()) for collection in axes.collections] == [4, 4, 2, 1]
    (timeline,) = build_worker_timelines(comparison.runs)
    axes, sentences = draw_on_axes(draw_updates, timeline)
    assert len(axes.patches) == timeline.bins * 2 and len(sentences) == 3
    heights = [-patch.get_height() for patch in axes.patches]
    assert max(heights) == pytest.approx(0.8) and min(heights) >= 0


def test_a_difference_has_its_tolerance_and_its_first_step(make_run: MakeRun) -> None:
    comparison = compare_runs([make_run("a"), make_run("b", change=diverge)], TOLERANCES)
    axes, sentences = draw_loss_difference(comparison)
    points, tolerance, beyond = axes.lines
    shown = np.isfinite(points.get_ydata())
    np.testing.assert_array_equal(points.get_xdata()[shown], np.arange(12, STEPS + 1))
    np.testing.assert_allclose(points.get_ydata()[shown], 0.05, rtol=1e-6)
    assert set(tolerance.get_ydata()) == {1e-5} and set(beyond.get_xdata()) == {12}
    assert [text.get_text() for text in axes.texts] == [" step 12"]
    assert any("identical at 11 of 20 steps." in sentence for sentence in sentences)


def test_equal_curves_have_no_difference_to_draw(make_run: MakeRun) -> None:
    axes, sentences = draw_loss_difference(compare_runs([make_run("a"), make_run("b", framework="tf")], TOLERANCES))
    assert [text.get_text() for text in axes.texts] == ["no difference at any step"]
    assert any("identical at 20 of 20 steps." in sentence for sentence in sentences)
    low, high = axes.get_ylim()
    assert low < 1e-5 < high


def test_a_tolerance_of_zero(make_run: MakeRun) -> None:
    comparison = compare_runs([make_run("a"), make_run("b", framework="tf")], {"float32": Tolerance(0, 0)})
    axes, _ = draw_loss_difference(comparison)
    low, high = axes.get_ylim()
    assert 0 < low < high


def test_values_that_are_not_finite_are_mentioned(make_run: MakeRun) -> None:
    def overflow(rows: list[dict[str, Any]]) -> None:
        rows[6]["loss"] = float("nan")

    _, sentences = draw_loss_difference(compare_runs([make_run("a"), make_run("b", change=overflow)], TOLERANCES))
    assert any("some values are not finite from step 7." in sentence for sentence in sentences)


def test_asynchronous_updates_are_drawn_as_means(make_asynchronous: MakeRun) -> None:
    run = load_run(make_asynchronous("a"))
    run.steps = np.arange(1, 2401)
    run.metrics = {name: np.arange(2400.0) for name in run.metrics} | {"loss": np.tile([0.0, 2.0], 1200)}
    axes, _ = draw_on_axes(draw_curves, [run], "loss", "examples")
    assert len(axes.lines[0].get_ydata()) == UPDATE_BINS and set(axes.lines[0].get_ydata()) == {1.0}


def test_a_long_curve_keeps_its_extremes(make_run: MakeRun) -> None:
    run = load_run(make_run("a"))
    run.steps = np.arange(1, 50_001)
    run.metrics = {name: np.ones(len(run.steps)) for name in run.metrics}
    run.metrics["loss"][[12_345, 30_001]] = 9.0, -7.0
    axes, _ = draw_on_axes(draw_curves, [run], "loss", "step")
    (band,), (line,) = axes.collections, axes.lines
    assert len(line.get_xdata()) == CURVE_BINS
    drawn = band.get_paths()[0].vertices[:, 1]
    assert (drawn.min(), drawn.max()) == (-7.0, 9.0)


def test_bars_have_their_values(make_run: MakeRun) -> None:
    runs = [load_run(make_run("a")), load_run(make_run("b", peak_memory_bytes=[1 << 20, 1 << 29]))]
    (chart,) = [chart for chart in build_bar_charts(runs) if chart.title == "Peak memory"]
    axes, _ = draw_on_axes(draw_bars, runs, chart)
    assert [text.get_text() for text in axes.texts] == ["256.0 MiB", "256.0 MiB", "1.0 MiB", "512.0 MiB"]
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [0.5, 0.5, 1 / 512, 1])


@pytest.mark.slow
def test_hostile_names_are_text(make_run: MakeRun, tmp_path: Path) -> None:
    comparison = compare_runs([make_run("a", strategy=HOSTILE), make_run("b", strategy="_hidden")], TOLERANCES)
    for path in write_pictures(comparison, tmp_path):
        content = path.read_bytes()
        assert b"<script" not in content and len(content) < 400_000
        if path.suffix == ".svg":
            ElementTree.fromstring(content)
    axes, _ = draw_on_axes(draw_curves, comparison.runs, "loss", "step")
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(texts) == 2 and all(len(text) < 50 for text in texts) and "_hidden" in texts[1]


def test_captions_name_the_settings_that_all_runs_share(make_run: MakeRun) -> None:
    comparison = compare_runs([make_run("a", "train.seed=1"), make_run("b", "train.seed=2")], TOLERANCES)
    settings = describe_settings(comparison)
    assert "global batch 32" in settings and "float32" in settings and "seed" not in settings


def test_pictures_of_one_run_have_no_difference(make_run: MakeRun) -> None:
    names = [picture.name for picture in list_pictures(compare_runs([make_run("a")], TOLERANCES))]
    assert "loss" in names and not [name for name in names if name.endswith("_difference")]


def test_an_unwritable_directory(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"pictures=.*file: cannot be written"):
        write_pictures(compare_runs([make_run("a")], TOLERANCES), tmp_path / "file")
