"""Processes of a run that are killed or stopped, and commands that are."""

import signal
import time
from typing import Any

import psutil
import pytest

from common.cluster.supervisor import MIN_LIFETIME_SECONDS
from tests.faults.conftest import (
    CHECKPOINT_EVERY,
    DDP,
    MIRRORED,
    MULTIWORKER,
    SERVERS,
    SYNCHRONOUS,
    Measured,
    Start,
    assert_undisturbed,
)

pytestmark = pytest.mark.faults


MATRIX = pytest.mark.matrix


def case(fault: str, kind: tuple[str, ...], victim: str, *marks: pytest.MarkDecorator) -> Any:
    name = f"{kind[0]}-{kind[1].partition('=')[2]}-{victim.replace(' ', '-')}"
    return pytest.param(kind, victim, id=name, marks=[pytest.mark.survives(fault), *marks])


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        case("SIGKILL of a ddp rank", DDP, "rank 1"),
        case("SIGKILL of a ddp rank", DDP, "rank 0", MATRIX),
        case("SIGKILL of a multiworker task", MULTIWORKER, "worker 1"),
        case("SIGKILL of a multiworker task", MULTIWORKER, "worker 0", MATRIX),
        case("SIGKILL of a parameter server (PyTorch)", ("torch", *SYNCHRONOUS), "rank 1", MATRIX),
        case("SIGKILL of a parameter server (TensorFlow)", ("tf", *SYNCHRONOUS), "ps 1"),
        case("SIGKILL of a worker, `max_staleness=0` (PyTorch)", ("torch", *SYNCHRONOUS), "rank 4", MATRIX),
    ],
)
def test_a_killed_process_starts_the_group_again(
    start: Start, undisturbed: list[dict[str, Any]], moment: int, measured: Measured, kind: tuple[str, ...], victim: str
) -> None:
    run = start(*kind, "train.max_restarts=2").at(moment)
    run.strike(victim, signal.SIGKILL)
    assert run.restarted() < 30
    seconds, lost = run.recover()
    assert_undisturbed(run, undisturbed, run.end())
    assert run.summary["restarts"] == 1 and run.summary["resumed_from"] % CHECKPOINT_EVERY == 0
    assert lost < 2 * CHECKPOINT_EVERY  # the newest may be under way
    measured(seconds, lost)


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        case("SIGSTOP of a ddp rank", DDP, "rank 1"),
        case("SIGSTOP of a multiworker task", MULTIWORKER, "worker 1", MATRIX),
    ],
)
def test_a_stopped_process_is_noticed_and_named(
    start: Start, undisturbed: list[dict[str, Any]], moment: int, measured: Measured, kind: tuple[str, ...], victim: str
) -> None:
    run = start(*kind, "train.max_restarts=1").at(moment)
    run.strike(victim, signal.SIGSTOP)
    assert run.restarted() < 20  # cluster.timeout
    seconds, lost = run.recover()
    said = run.end()
    assert f"{victim} has been stopped" in said  # for 10 s, unless the others notice first
    assert_undisturbed(run, undisturbed, said)
    measured(seconds, lost)


@pytest.mark.parametrize(
    "kind", [DDP, pytest.param(MIRRORED, marks=MATRIX)], ids=lambda kind: kind[1].partition("=")[2]
)
@pytest.mark.survives("SIGKILL of the whole run, started again with `resume=auto`")
def test_a_killed_run_is_resumed(
    start: Start, undisturbed: list[dict[str, Any]], moment: int, measured: Measured, kind: tuple[str, ...]
) -> None:
    run = start(*kind).at(moment)
    children = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    run.end()
    again = start(*kind, "resume=auto", name=run.run_dir.name)
    seconds, lost = again.recover()
    assert_undisturbed(again, undisturbed, again.end())
    assert again.summary["resumed_from"] % CHECKPOINT_EVERY == 0
    measured(seconds, lost)


@pytest.mark.parametrize(
    ("framework", "worker", "signum"),
    [
        pytest.param(
            framework,
            worker,
            signum,
            marks=[
                pytest.mark.survives(f"{signum.name} of a parameter server's worker ({side})"),
                *([MATRIX] if signum is signal.SIGSTOP else []),
            ],
            id=f"{framework}-{signum.name}",
        )
        for framework, worker, side in (("torch", "rank 4", "PyTorch"), ("tf", "worker 1", "TensorFlow"))
        for signum in (signal.SIGKILL, signal.SIGSTOP)
    ],
)
def test_a_worker_of_the_parameter_servers_is_restarted(
    start: Start, moment: int, measured: Measured, framework: str, worker: str, signum: signal.Signals
) -> None:
    """No batch is lost; none counts twice in PyTorch, and one that does in TensorFlow is reported."""
    steps = 1500 if framework == "torch" else 350  # long enough for its restart
    run = start(framework, *SERVERS, f"train.steps={steps}", "train.eval_every=null", "schedule=constant")
    run.at(60 + moment)
    time.sleep(
        max(0, MIN_LIFETIME_SECONDS + 3 - (time.monotonic() - run.since))
    )  # one that crashes sooner is not restarted
    run.strike(worker, signum)
    run.restarted()
    known = len(run.rows)
    run.wait(lambda: any(row["worker"] == 1 for row in run.rows[known + 8 :]))  # those that it left are past
    measured(time.monotonic() - run.since, 0)
    said = run.end(240)
    assert run.process.returncode == 0, said
    assert worker in said and "starting it again" in said
    assert "input_ids" not in said  # TensorFlow would print the batch
    done = [(row["batch"], row["part"]) for row in run.rows]
    assert sorted(done) == [(batch, part) for batch in range(1, steps + 1) for part in (0, 1)]
    assert run.summary["version"] == len(done) + len(run.summary.get("doubled_updates", []))
    assert run.summary["restarts"] == 0
