import json
from pathlib import Path

import pytest

from common.compare.__main__ import main
from common.compare.options import parse_command_line
from tests.unit.common.compare.conftest import MakeRun


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_default_is_the_newest_run_of_each_kind(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    make_run("old", started="2026-01-01T00:00:00+00:00", status="failed")
    make_run("new", started="2026-01-02T00:00:00+00:00")
    make_run("tf", framework="tf", strategy="mirrored")
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "torch ddp x2" in shown and "tf mirrored x2" in shown and "failed" not in shown
    assert "lockstep: 2 runs agree at all 20 steps" in shown
    assert shown.splitlines()[-2:] == [str(Path("report.html").resolve()), str(Path("report.json").resolve())]


@pytest.mark.slow
def test_check_sets_the_exit_code(make_run: MakeRun) -> None:
    a, b, c = (str(make_run(name, f"train.seed={seed}")) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert main([a, b, "--check", "output=out"]) == 0 and Path("out/report.html").exists()
    assert main([a, c, "--check"]) == 1
    assert main([a, c]) == 0
    assert main([a, "--check"]) == 1, "one run is in lockstep with none"


def test_a_report_that_cannot_be_written_costs_no_verdict(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    with pytest.raises(SystemExit):
        main([str(make_run("a")), str(make_run("b")), "output=file"])
    assert "lockstep: 2 runs agree at all 20 steps" in capsys.readouterr().out


def test_a_directory_of_a_sweep(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        make_run(f"sweep/train.seed={seed}", f"train.seed={seed}")
    assert main(["runs/sweep"]) == 0
    shown = capsys.readouterr().out
    assert "torch ddp x2 (train.seed=0)" in shown and "torch ddp x2 (train.seed=1)" in shown


def test_one_run_alone(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(make_run("a"))]) == 0
    assert "only one run" in capsys.readouterr().out


def damage(run_dir: Path, file: str) -> None:
    if file == "a malformed row":
        (run_dir / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    else:
        (run_dir / file).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("file", ["a malformed row", "config.yaml", "metrics.jsonl", "summary.json"])
def test_a_damaged_run_is_named_and_the_others_are_compared(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    runs = [make_run("a"), make_run("damaged"), make_run("b")]
    damage(runs[1], file)
    assert main(list(map(str, runs))) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(f"left out: {runs[1]}") and shown.err.count("\n") == 1
    assert f"note: {shown.err}" in shown.out
    assert (
        f"incomplete: 1 left out ({runs[1]}" in shown.out
        and "the others: lockstep: 2 runs agree at all 20" in shown.out
    )
    assert "<title>Lockstep: incomplete</title>" in Path("report.html").read_text()
    report = json.loads(Path("report.json").read_text())
    assert report["left_out"] == [shown.err.removeprefix("left out: ").rstrip()] and len(report["runs"]) == 2
    assert main(["--check", *map(str, runs)]) == 1


@pytest.mark.slow
def test_one_run_beside_a_damaged_one(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """The report shows the run as if it were alone, and --check fails."""
    runs = [make_run("a"), make_run("damaged")]
    damage(runs[1], "summary.json")
    assert main(list(map(str, runs))) == 0
    shown = capsys.readouterr().out
    assert "the others: only one run: torch ddp x2 with 20 steps; name a second one to compare it with" in shown
    assert main(["--check", *map(str, runs)]) == 1


def test_damaged_runs_alone_are_an_error(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run("a"), make_run("b")]
    for run_dir in runs:
        damage(run_dir, "summary.json")
    with pytest.raises(SystemExit) as stopped:
        main(list(map(str, runs)))
    printed = capsys.readouterr().err
    assert stopped.value.code == 2 and printed.count("\n") == 1
    assert printed.startswith(f"error: {runs[0]}: summary.json is missing: killed before")
    assert printed.endswith("(and 1 more that cannot be read)\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such run directory"),
        (["empty"], "empty: not a run directory: config.yaml is missing"),
        (["x" * 300], "xxx: no such run directory"),
        (["file"], "file: a file; name the directory of a run"),
        (["runs=file"], "runs=file: a file, not a directory of runs; make some"),
        (["runs=empty"], "runs=empty: no runs found; make some"),
        ([], "no runs found; make some with `python -m torch_impl.train strategy=ddp`"),
        (["output=file"], "output=file: cannot be written (File exists); make space or choose another place"),
        ([f"output={'x' * 300}"], "xxx: cannot be written (File name too long)"),
        (["tolerence=1"], "tolerence"),
        (["tolerances.float32.loss=abc"], "tolerances.float32.loss"),
        (["reference=nothing"], "reference=nothing"),
    ],
)
def test_a_mistake_is_one_line(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("empty").mkdir()
    Path("file").touch()
    if arguments and "=" in arguments[0]:
        make_run("a")
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and printed.count("\n") == 1 and message in printed


@pytest.mark.parametrize("override", ["environments={old: ~/none, new: ~/other}", "environments.old=~/none"])
def test_an_interpreter_may_be_below_the_home_directory(override: str) -> None:
    assert parse_command_line(None, [override]).options.environments["old"] == "~/none"
