"""Tests of the command that starts a run's processes. The processes here are one-line scripts."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.cluster import launcher
from common.cluster.launcher import PROCESSES, start
from common.cluster.supervisor import Process
from common.cluster.topology import HostGroup
from common.errors import FAILURE, UserError
from common.interpreter import NoAnswerError
from common.run.prepare import prepare_run
from tests.conftest import MakeConfig

pytestmark = pytest.mark.slow

WRITTEN = {"framework": "torch", "strategy": "ddp", "replicas": 2, "status": "completed", "steps": 3}
WRITTEN |= dict.fromkeys(("final_loss", "accuracy", "examples_per_second", "tokens_per_second", "peak_memory_bytes"))
SUMMARY = f"import json, pathlib; pathlib.Path(sys.argv[1], 'summary.json').write_text({json.dumps(WRITTEN)!r}); "

Launch = Callable[..., int]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def launch(small_config: MakeConfig, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Return a function that prepares a run and runs one process for each piece of code until all end."""
    monkeypatch.setattr("common.cluster.supervisor.STRAGGLER_SECONDS", 1.0)

    def run(*codes: str, overrides: tuple[str, ...] = ()) -> int:
        config = small_config("strategy=ddp", "strategy.replicas=2", *overrides)
        context = prepare_run(config, "torch", run_dir)
        processes = [
            Process(f"rank {rank}", [sys.executable, "-c", f"import os, sys, time; {code}", str(run_dir)])
            for rank, code in enumerate(codes)
        ]
        return start(context, HostGroup(), processes)

    return run


@pytest.mark.parametrize(
    ("code", "override", "expected"),
    [
        ("sys.exit(1)", "train.max_restarts=2", "python=/old/python: cannot import torch"),
        ("pathlib.Path(sys.argv[1], 'metrics.jsonl').touch(); sys.exit(1)", "train.max_restarts=0", None),
    ],
)
def test_an_interpreter_that_cannot_import_is_named_after_the_first_attempt_without_a_step(
    launch: Launch, run_dir: Path, monkeypatch: pytest.MonkeyPatch, code: str, override: str, expected: str | None
) -> None:
    def check_import(key: str, python: str, framework: str, library: str) -> None:
        raise UserError(f"{key}={python}: cannot import {framework}")

    monkeypatch.setattr(launcher, "check_import", check_import)
    overrides = (override, "python=/old/python")
    codes = f"import pathlib; print('attempt', flush=True); {code}", "pass"
    if expected is None:
        assert launch(*codes, overrides=overrides) == FAILURE
    else:
        with pytest.raises(UserError, match=f"^{expected}$"):
            launch(*codes, overrides=overrides)
        assert summary(run_dir)["error"] == expected
        assert "restarting" not in (run_dir / "train.log").read_text()


def test_an_import_that_does_not_end_hides_no_failure(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_import(*arguments: object) -> None:
        raise NoAnswerError("python: does not answer")

    monkeypatch.setattr(launcher, "check_import", check_import)
    assert launch("sys.exit(1)", "pass", overrides=("python=/old/python",)) == FAILURE


def summary(run_dir: Path) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return recorded


def test_a_run_that_completes(launch: Launch, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(SUMMARY, "print('hello')") == 0
    assert summary(run_dir) == WRITTEN
    assert json.loads((run_dir / PROCESSES).read_text()).keys() == {"rank 0", "rank 1"}
    assert (run_dir / "train.log").read_text() == "hello\n"
    out, errors = capsys.readouterr()
    assert "torch ddp x2: completed" in out and errors == ""


def test_the_summary_that_the_chief_could_not_write(
    launch: Launch, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("time.sleep(60)", "print('why', flush=True); sys.exit(3)") == 1
    recorded = summary(run_dir)
    assert (recorded["status"], recorded["error"]) == ("failed", "rank 1 ended with exit code 3")
    assert capsys.readouterr().err == f"failed: rank 1 ended with exit code 3; see {run_dir / 'train.log'}\n"


def test_a_mistake_that_another_rank_reports(launch: Launch, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch("time.sleep(60)", "print('error: no GPU here', flush=True); sys.exit(2)") == 2
    assert (summary(run_dir)["status"], summary(run_dir)["error"]) == ("failed", "no GPU here")
    assert capsys.readouterr().err == "error: no GPU here\n"


LOG_REASON = "open(sys.argv[1] + '/train.log', 'a').write('failed: RuntimeError: no device\\n'); "


def test_the_chief_could_not_begin_to_train(launch: Launch, run_dir: Path) -> None:
    assert launch(LOG_REASON + "sys.exit(1)", "time.sleep(60)") == 1
    assert summary(run_dir)["error"] == "RuntimeError: no device"


def test_an_error_that_follows_that_of_another_rank_is_not_the_reason(launch: Launch, run_dir: Path) -> None:
    code = "time.sleep(0.3); " + LOG_REASON + "sys.exit(1)"
    assert launch(code, "print('error: no GPU here', flush=True); sys.exit(2)") == 2
    assert summary(run_dir)["error"] == "no GPU here"


def test_the_summary_of_an_earlier_command_does_not_stand_for_this_one(launch: Launch, run_dir: Path) -> None:
    (run_dir / "summary.json").write_text(json.dumps(WRITTEN))
    assert launch("sys.exit(3)", "time.sleep(60)") == 1
    assert summary(run_dir)["status"] == "failed"


def test_the_rank_that_crashed_is_named_beside_the_chiefs_summary(
    launch: Launch, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(SUMMARY + "time.sleep(60)", "time.sleep(0.5); os.abort()") == 1
    assert summary(run_dir) == WRITTEN
    assert capsys.readouterr().err == "failed: rank 1 ended with signal SIGABRT\n"


def test_an_interrupted_run(launch: Launch, run_dir: Path) -> None:
    assert launch("sys.exit(143)", "time.sleep(60)") == 143
    assert (summary(run_dir)["status"], summary(run_dir)["error"]) == ("interrupted", "stopped by SIGTERM")


def test_a_checkpoint_that_cannot_be_read(launch: Launch, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*arguments: object) -> int:
        raise UserError("damaged")

    monkeypatch.setattr("common.cluster.launcher.PeerMonitor.begin_attempt", begin)
    with pytest.raises(UserError, match=r"^damaged$"):
        launch(SUMMARY)
    assert (summary(run_dir)["status"], summary(run_dir)["error"]) == ("failed", "damaged")


CRASH_ONCE = "restarts = os.environ['LOCKSTEP_RESTARTS']; print(restarts, file=sys.stderr); "


def test_a_run_that_crashes_is_restarted(
    launch: Launch, run_dir: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    code = CRASH_ONCE + "sys.exit(0 if restarts == '1' else 5)"
    assert launch(code, overrides=("train.max_restarts=3",)) == 0
    assert capfd.readouterr().err.startswith("0\n1\n")
    assert "rank 0 ended with exit code 5; restarting from the newest checkpoint" in caplog.text


def test_a_run_that_crashes_too_often(launch: Launch, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(CRASH_ONCE + "sys.exit(5)", overrides=("train.max_restarts=2",)) == 1
    assert capfd.readouterr().err.startswith("0\n1\n2\nfailed: rank 0 ended with exit code 5\n")


@pytest.mark.parametrize("exit_code", [2, 143])
def test_neither_a_users_error_nor_a_signal_restarts_a_run(
    launch: Launch, capfd: pytest.CaptureFixture[str], exit_code: int
) -> None:
    code = SUMMARY + CRASH_ONCE + f"sys.exit({exit_code})"
    assert launch(code, overrides=("train.max_restarts=2",)) == exit_code
    assert capfd.readouterr().err == "0\n"
