from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.compare.pair import Tolerance
from common.compare.verdict import compare_runs
from common.report import terminal
from common.report.tables import PAIR_COLUMNS, RUN_COLUMNS
from common.terminal import SafeConsole
from tests.unit.common.compare.conftest import CHANGED, MakeRun

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}
Show = Callable[..., str]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Show:
    """Return a function that prints the comparison of runs on a terminal of N columns, and returns the output."""

    def print_runs(columns: int, *runs: Path) -> str:
        def console(**options: Any) -> SafeConsole:
            return SafeConsole(**(options | {"width": columns, "force_terminal": True, "color_system": None}))

        monkeypatch.setattr(terminal, "SafeConsole", console)
        terminal.print_comparison(compare_runs(runs, TOLERANCES))
        return capsys.readouterr().out

    return print_runs


def test_a_narrow_terminal_shows_whole_numbers_of_the_columns_that_fit(make_run: MakeRun, show: Show) -> None:
    seeds = [make_run(str(seed), f"train.seed={seed}", final_loss=0.912345 + seed) for seed in (0, 1)]
    shown = show(80, *seeds)
    tables = shown[: shown.index("(no room for status, precision")]
    assert all(len(line.rstrip()) <= 80 for line in tables.splitlines())
    for number in ("0.912345", "1.912345", "640.0", "(train.seed=0)", "(train.seed=1)"):
        assert number in tables
    assert "status" not in tables and "0.00e+00 at 1" in shown and "not comparable" in shown


@pytest.mark.slow
def test_words_stay_whole(make_run: MakeRun, show: Show) -> None:
    runs = [make_run("a"), make_run("b", framework="tf", strategy="multiworker"), make_run("c", "train.seed=1")]
    for columns in (60, 70, 80, 90):
        words = set(show(columns, *runs).split("note: ")[0].split())
        assert {"multiworker", "lockstep", "comparable"} <= words


def test_a_wide_terminal_shows_every_column(make_run: MakeRun, show: Show) -> None:
    shown = show(160, make_run("a"), make_run("b"))
    assert "no room" not in shown
    assert all(column in shown for column in RUN_COLUMNS + PAIR_COLUMNS)


def test_a_changed_number_of_replicas_is_marked(make_run: MakeRun, show: Show) -> None:
    changes = [{"step": step, "replicas": 2 + step % 2} for step in range(1, 7)]
    runs = [make_run("a"), make_run("b", replicas=4, replicas_changed=CHANGED), make_run("c", replicas_changed=changes)]
    shown = show(160, *runs)
    assert "torch ddp x2 " in shown and "torch ddp x3→2→4 " in shown and "torch ddp x3→…→2 " in shown
    note = "replicas 3 from step 1, 2 from step 8, 4 from step 15; speed, peak memory and traffic belong to the last"
    assert f"note: torch ddp x3→2→4: {note}" in shown
    assert "lockstep: 3 runs agree at all 20 steps" in shown


@pytest.mark.slow
def test_of_many_pairs_those_with_the_reference_are_shown(make_run: MakeRun, show: Show) -> None:
    runs = [make_run(str(seed), f"train.seed={seed}") for seed in range(6)]
    all_pairs, reference_pairs = show(160, *runs[:5]), show(160, *runs)
    assert all_pairs.count("not comparable  ") == 10 and "other pairs" not in all_pairs
    assert reference_pairs.count("not comparable  ") == 5
    assert "The pairs with torch ddp x2 (train.seed=0); 10 other pairs are in report.html." in reference_pairs


@pytest.mark.slow
def test_of_many_notes_the_first_are_shown(make_run: MakeRun, show: Show) -> None:
    runs = [make_run(str(index), status="failed") for index in range(terminal.MAX_NOTES + 2)]
    shown = show(160, *runs)
    assert shown.count("status failed") == terminal.MAX_NOTES and "note: 2 more notes are in report.html" in shown


def test_the_last_line_is_not_repeated_as_a_note(make_run: MakeRun, show: Show) -> None:
    runs = [make_run("a"), make_run("b", "train.seed=1")]
    assert show(160, *runs).count("different configs: train.seed (0 | 1)") == 1


def test_a_run_sends_no_commands_to_the_terminal(make_run: MakeRun, show: Show) -> None:
    command = "\x1b]0;title\x07\x9b2J"
    versions = {"python": f"3{command}"}
    shown = show(200, make_run("a", strategy=f"x{command}"), make_run("b", framework=f"y{command}", versions=versions))
    assert r"x\x1b]0;title" in shown and r"y\x1b]0;title" in shown
    assert "\x1b]" not in shown and "\x9b" not in shown


@pytest.mark.parametrize(
    ("precision", "amount", "is_rounding"), [("float32", 2e-4, True), ("float32", 0.1, False), ("float64", 2e-4, False)]
)
def test_a_small_difference_in_float32_may_be_rounding(
    make_run: MakeRun,
    show: Show,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    amount: float,
    is_rounding: bool,
) -> None:
    monkeypatch.setitem(TOLERANCES, precision, TOLERANCES["float32"])

    def change(rows: list[dict[str, Any]]) -> None:
        rows[4]["loss"] += amount

    chosen = f"train.precision={precision}"
    a, b = make_run("a", chosen), make_run("b", chosen, change=change)
    shown = show(160, a, b)
    assert f"to find out why: python -m common.diagnose {a} {b}" in shown
    assert ("this may be rounding in float32, which a ReLU passes on at once (docs/parity.md" in shown) == is_rounding


def test_a_small_difference_between_devices_may_be_rounding(make_run: MakeRun, show: Show) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[4]["loss"] += 2e-4

    environments: list[dict[str, Any]] = [{"device": device, "flags": {}} for device in ("cpu", "NVIDIA H100")]
    shown = show(
        300, make_run("a", environment=environments[0]), make_run("b", change=change, environment=environments[1])
    )
    rounding = "this may be rounding in float32, which differs between devices (cpu | NVIDIA H100): train both with"
    assert rounding in shown
    assert "the environments differ in device (cpu | NVIDIA H100); common.diagnose says what they change" in shown
