"""Faults on one machine: processes and commands that are killed or stopped."""

import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import wait_until_restartable
from tests.faults.conftest import (
    CHECKPOINT_EVERY,
    DDP,
    MIRRORED,
    MULTIWORKER,
    SERVERS,
    SYNCHRONOUS,
    RecordFigures,
    Start,
    assert_same_curve,
)

pytestmark = pytest.mark.faults
MATRIX = pytest.mark.matrix
ONE_SERVER = ("strategy=parameter_server", "strategy.workers=1", "strategy.max_staleness=0")


def make_case(fault: str, kind: tuple[str, ...], victim: str, *marks: pytest.MarkDecorator) -> Any:
    """Return the parameters of a test."""
    name = f"{kind[0]}-{kind[1].partition('=')[2]}-{victim.replace(' ', '-')}"
    return pytest.param(kind, victim, id=name, marks=[pytest.mark.survives(fault), *marks])


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        make_case("SIGKILL of a ddp rank", DDP, "rank 1"),
        make_case("SIGKILL of a ddp rank", DDP, "rank 0", MATRIX),
        make_case("SIGKILL of a multiworker task", MULTIWORKER, "worker 1"),
        make_case("SIGKILL of a multiworker task", MULTIWORKER, "worker 0", MATRIX),
        make_case("SIGKILL of a parameter server (PyTorch)", ("torch", *ONE_SERVER), "rank 1"),
        make_case("SIGKILL of a parameter server (TensorFlow)", ("tf", *SYNCHRONOUS), "ps 1", MATRIX),
        make_case("SIGKILL of a worker, `max_staleness=0` (PyTorch)", ("torch", *SYNCHRONOUS), "rank 4", MATRIX),
    ],
)
def test_a_killed_process_starts_the_group_again(
    start: Start,
    reference_rows: list[dict[str, Any]],
    fault_step: int,
    record_figures: RecordFigures,
    kind: tuple[str, ...],
    victim: str,
) -> None:
    # Five processes of parameter servers need longer than 20 seconds to start again beside another test.
    run = start(*kind, "train.max_restarts=2", "cluster.timeout=60").wait_for_step(fault_step)
    run.send_signal(victim, signal.SIGKILL)
    seconds, lost = run.wait_for_recovery()
    output = run.wait_for_end()
    assert_same_curve(run, reference_rows, output)
    assert "; restarting from the newest checkpoint" in output
    assert run.summary["restarts"] == 1 and run.summary["resumed_from"] % CHECKPOINT_EVERY == 0
    assert lost < 2 * CHECKPOINT_EVERY  # the newest checkpoint may be incomplete
    record_figures(seconds, lost)


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        make_case("SIGSTOP of a ddp rank", DDP, "rank 1"),
        make_case("SIGSTOP of a multiworker task", MULTIWORKER, "worker 1", MATRIX),
    ],
)
def test_a_stopped_process_is_noticed_and_named(
    start: Start,
    reference_rows: list[dict[str, Any]],
    fault_step: int,
    record_figures: RecordFigures,
    kind: tuple[str, ...],
    victim: str,
) -> None:
    run = start(*kind, "train.max_restarts=1").wait_for_step(fault_step)
    run.send_signal(victim, signal.SIGSTOP)
    seconds, lost = run.wait_for_recovery()
    output = run.wait_for_end()
    assert f"{victim} has been stopped" in output  # for 10 s, unless another process fails first
    assert_same_curve(run, reference_rows, output)
    record_figures(seconds, lost)


@MATRIX  # a run whose clock jumps is killed and resumed in CI
@pytest.mark.parametrize("kind", [DDP, MIRRORED], ids=lambda kind: kind[1].partition("=")[2])
@pytest.mark.survives("SIGKILL of the whole run, started again with `resume=auto`")
def test_a_killed_run_is_resumed(
    start: Start,
    reference_rows: list[dict[str, Any]],
    fault_step: int,
    record_figures: RecordFigures,
    kind: tuple[str, ...],
) -> None:
    run = start(*kind).wait_for_step(fault_step)
    children = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    run.wait_for_end()
    resumed = start(*kind, "resume=auto", name=run.run_dir.name)
    seconds, lost = resumed.wait_for_recovery()
    assert_same_curve(resumed, reference_rows, resumed.wait_for_end())
    assert resumed.summary["resumed_from"] % CHECKPOINT_EVERY == 0
    record_figures(seconds, lost)


@MATRIX  # CI kills a worker on one of two hosts
@pytest.mark.parametrize(
    ("framework", "worker", "signum"),
    [
        pytest.param(
            framework,
            worker,
            signum,
            marks=pytest.mark.survives(f"{signum.name} of a parameter server's worker ({side})"),
            id=f"{framework}-{signum.name}",
        )
        for framework, worker, side in (("torch", "rank 4", "PyTorch"), ("tf", "worker 1", "TensorFlow"))
        for signum in (signal.SIGKILL, signal.SIGSTOP)
    ],
)
def test_a_worker_of_the_parameter_servers_is_restarted(
    start: Start,
    fault_step: int,
    record_figures: RecordFigures,
    framework: str,
    worker: str,
    signum: signal.Signals,
    tmp_path: Path,
) -> None:
    """No batch is lost. PyTorch applies no update twice; TensorFlow reports an update that it applies twice."""
    steps, pace_end = 200, tmp_path / "pace-end"
    overrides = (*SERVERS, f"train.steps={steps}", "train.eval_every=null", "schedule=constant")
    run = start(framework, *overrides, PACE_END=str(pace_end)).wait_for_step(fault_step)
    wait_until_restartable(run.pid(worker))
    run.send_signal(worker, signum)
    run.wait_for_restart()
    row_count = len(run.rows)
    # The first rows may come from updates that the worker sent before the fault.
    run.wait_for(lambda: any(row["worker"] == 1 for row in run.rows[row_count + 8 :]))
    record_figures(time.monotonic() - run.fault_at, 0)
    pace_end.touch()
    output = run.wait_for_end()
    assert run.process.returncode == 0, output
    assert worker in output and "starting it again" in output
    assert "input_ids" not in output  # TensorFlow prints the batch in its own error
    trained = [(row["batch"], row["part"]) for row in run.rows]
    assert sorted(trained) == [(batch, part) for batch in range(1, steps + 1) for part in (0, 1)]
    assert run.summary["version"] == len(trained) + len(run.summary.get("doubled_updates", []))
    assert run.summary["restarts"] == 0
