import json
import logging
import sys
from pathlib import Path

import pytest

from common.errors import USER_ERROR
from common.run.progress import TrainingProgress, log_to, report_end
from common.training.state import Position, State
from tests.unit.common.run.conftest import evaluation, step


def show(total: int = 5, log_every: int = 2) -> None:
    """Show the progress of five steps in two blocks, of an evaluation and of a checkpoint."""
    progress = TrainingProgress("ddp x2", total, log_every)
    progress.record_steps([step(1, 0.1), step(2, 0.2)], [], 20.0)
    progress.record_evaluation(evaluation(2))
    progress.save(State({}, {}), Position(2))
    progress.record_steps([step(3, 0.3)], [], 30.0)
    progress.record_steps([step(4, 0.4), step(5, 0.5)], [], 40.0)
    progress.close()


def test_lines_where_there_is_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lockstep"):
        show()
    assert caplog.messages == [
        "step 2/5  loss 0.500000  grad_norm 2.0000  learning_rate 0.001  20.0 examples/s",
        "step 2  validation loss 0.700000  accuracy 0.5000 (12 examples)",
        "step 5/5  loss 0.200000  grad_norm 2.0000  learning_rate 0.001  40.0 examples/s",
    ]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    show()
    out = capsys.readouterr().out
    assert "ddp x2" in out and "5/5" in out and "loss 0.2000" in out
    assert "step 2  validation loss 0.700000  accuracy 0.5000 (12 examples)" in out


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("chief", [True, False])
def test_the_chief_writes_to_its_log_too(run_dir: Path, capsys: pytest.CaptureFixture[str], chief: bool) -> None:
    log_to(run_dir if chief else None)
    logging.getLogger("lockstep").info("a message")
    assert capsys.readouterr().out == "a message\n"
    assert not chief or (run_dir / "train.log").read_text() == "a message\n"


def test_the_closing_table(run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    summary = {"framework": "torch", "strategy": "ddp", "replicas": 2, "status": "completed", "steps": 5}
    measured = {"final_loss": 0.25, "accuracy": 0.75, "examples_per_second": 20.04, "tokens_per_second": None}
    other_fields = {"peak_memory_bytes": [1 << 20, 3 << 20], "error": "stopped by SIGHUP"}
    (run_dir / "summary.json").write_text(json.dumps({**summary, **measured, **other_fields}))
    report_end(run_dir, USER_ERROR)
    assert capsys.readouterr() == ("", "")
    report_end(run_dir, 129)
    (run_dir / "train.log").touch()
    report_end(run_dir, 129)
    assert capsys.readouterr().err == "completed: stopped by SIGHUP\n" * 2
    (run_dir / "train.log").write_text("a message\n")
    report_end(run_dir, 129)
    out, errors = capsys.readouterr()
    assert errors == f"completed: stopped by SIGHUP; see {run_dir / 'train.log'}\n"
    assert "torch ddp x2: completed" in out
    row = next(line for line in out.splitlines() if "MiB" in line)
    assert [cell.strip() for cell in row.strip("│┃|").split("│")] == ["5", "0.250000", "0.7500", "20.0", "-", "3 MiB"]
    assert out.splitlines()[-1] == f"run directory: {run_dir}"
