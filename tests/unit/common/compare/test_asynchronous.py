import json
from pathlib import Path
from typing import Any

import pytest

from common.compare.__main__ import main
from common.compare.measures import compare_with_reference, compute_mean_staleness
from common.compare.pair import Tolerance
from common.compare.runs import load_run
from common.compare.verdict import Comparison, compare_runs
from common.report.bars import build_bar_charts
from common.report.json_report import write_json
from common.report.tables import build_asynchronous_tables
from tests.unit.common.compare.conftest import STEPS, MakeRun

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}


def compare(*runs: Path) -> Comparison:
    return compare_runs(runs, TOLERANCES)


@pytest.mark.parametrize(
    ("overrides", "entries", "expected"),
    [
        (["strategy=parameter_server"], {"strategy": "parameter_server"}, True),
        (["strategy=parameter_server", "strategy.max_staleness=2"], {"strategy": "parameter_server"}, True),
        (["strategy=parameter_server", "strategy.max_staleness=0"], {"strategy": "parameter_server"}, False),
        ([], {"staleness": {"0": 5, "3": 1}}, True),
        ([], {"staleness": {"0": 5}}, False),
        ([], {}, False),
    ],
)
def test_which_runs_are_asynchronous(
    make_run: MakeRun, overrides: list[str], entries: dict[str, Any], expected: bool
) -> None:
    assert load_run(make_run("a", *overrides, **entries)).is_asynchronous is expected


def test_the_verdict_is_about_the_synchronous_runs(make_run: MakeRun, make_asynchronous: MakeRun) -> None:
    comparison = compare(make_asynchronous("ps"), make_run("a"), make_run("b", framework="tf", strategy="mirrored"))
    assert comparison.verdict == "lockstep"
    assert comparison.sentence.startswith("lockstep: 2 runs agree at all 20 steps: ")
    assert comparison.sentence.endswith("; not among them, because asynchronous: torch parameter_server x2")
    assert comparison.reference.path.name == "a", "the first synchronous one"
    assert comparison.notes == []
    of_a, of_b, other = comparison.pairs
    assert (of_a.verdict, of_b.verdict, other.verdict) == ("not comparable", "not comparable", "lockstep")
    expected = "asynchronous: the updates of torch parameter_server x2 come in the order in which they are ready"
    assert of_a.reasons == [expected]
    assert (of_a.steps, of_a.max_loss_difference, of_a.first_step_beyond) == (0, None, None)
    assert (of_a.evaluation_examples, of_a.evaluation_loss_difference) == (32 * STEPS, 0)


@pytest.mark.slow
def test_check_judges_asynchronous_pairs_too(
    make_run: MakeRun, make_asynchronous: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    synchronous = [str(make_run("a")), str(make_run("b"))]
    assert main(["--check", *synchronous]) == 0
    assert main(["--check", *synchronous, str(make_asynchronous("ps"))]) == 1


def test_a_divergence_beside_an_asynchronous_run(make_run: MakeRun, make_asynchronous: MakeRun) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[3]["loss"] += 1

    comparison = compare(make_run("a"), make_run("b", change=change), make_asynchronous("ps"))
    assert comparison.verdict == "diverged" and "diverge at step 4 of 20" in comparison.sentence


def test_a_synchronous_parameter_server_is_compared_at_every_step(make_run: MakeRun) -> None:
    overrides = ("strategy=parameter_server", "strategy.max_staleness=0")
    entries = {"strategy": "parameter_server", "staleness": {"0": STEPS}}
    comparison = compare(make_run("a"), make_run("b", *overrides, **entries))
    assert comparison.verdict == "lockstep"
    assert comparison.runs[1].label == "torch parameter_server synchronous x2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("synchronous", "subject"), [(["a"], "only torch ddp x2 is synchronous"), ([], "no run is synchronous")]
)
def test_fewer_than_two_synchronous_runs(
    make_run: MakeRun,
    make_asynchronous: MakeRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    synchronous: list[str],
    subject: str,
) -> None:
    """--check fails, because no pair was checked."""
    monkeypatch.chdir(tmp_path)
    runs = [make_asynchronous("one"), make_asynchronous("two", framework="tf"), *map(make_run, synchronous)]
    comparison = compare(*runs)
    assert comparison.verdict == "not comparable"
    assert comparison.sentence == (
        f"not comparable: {subject}, and lockstep needs two synchronous runs; torch parameter_server x2, "
        "tf parameter_server x2: compared after equal examples"
    )
    assert main(["--check", *map(str, runs)]) == 1
    shown = capsys.readouterr().out
    assert "Asynchronous runs" in shown and "0: 1  1: 39" in shown


def test_the_difference_at_equal_examples(make_run: MakeRun, make_asynchronous: MakeRun) -> None:
    run, reference = load_run(make_asynchronous("ps")), load_run(make_run("a"))
    difference = compare_with_reference(run, reference)
    # The loss of one half of a batch is 0.06 above that of the reference, and of the other half 0.04 below.
    assert difference.loss == pytest.approx(0.01)
    assert (difference.evaluation_loss, difference.accuracy) == (0, 0)
    assert compute_mean_staleness(run) == pytest.approx(39 / 40)


@pytest.mark.parametrize("rows", [True, False])
def test_a_run_that_ended_early(make_run: MakeRun, make_asynchronous: MakeRun, rows: bool) -> None:
    ps = make_asynchronous("ps", staleness={})
    if not rows:
        (ps / "metrics.jsonl").write_text("")
        (ps / "evals.jsonl").unlink()
    comparison = compare(make_run("a"), ps)
    (section,) = build_asynchronous_tables(comparison.runs, comparison.reference)
    assert section.rows[0][1:5] == ([str(2 * STEPS), str(32 * STEPS)] if rows else ["0", "0"]) + ["-", "-"]
    assert "Staleness" not in [chart.title for chart in build_bar_charts(comparison.runs)]


def test_staleness_is_drawn(make_run: MakeRun, make_asynchronous: MakeRun) -> None:
    comparison = compare(
        make_run("a"), make_asynchronous("ps", staleness={str(staleness): 1 for staleness in range(20)})
    )
    (chart,) = [chart for chart in build_bar_charts(comparison.runs) if chart.title == "Staleness"]
    ((run, bars),) = chart.groups
    assert run == 1 and [bar.name for bar in bars] == [*map(str, range(12)), "12 to 19"]
    assert bars[0].text == "5.0%" and bars[-1].end == pytest.approx(0.4)


def test_the_json_has_staleness(make_run: MakeRun, make_asynchronous: MakeRun, tmp_path: Path) -> None:
    path = write_json(compare(make_run("a"), make_asynchronous("ps")), tmp_path)
    a, ps = json.loads(path.read_text())["runs"]
    assert not a["asynchronous"] and "staleness" not in a
    assert ps["staleness"] == {"0": 1, "1": 39} and ps["mean_staleness"] == pytest.approx(0.975)
    assert ps["against_reference"]["accuracy"] == 0
