"""Slurm jobs on two real nodes: side by side, requeued with other nodes and replicas, and after the loss of a node."""

import json
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.two_hosts import ADDRESSES
from common.run.checkpoint import find_newest_checkpoint
from common.training.rows import read_rows
from tests.conftest import ROOT, wait_until
from tests.faults.conftest import SHARED, STEPS
from tests.integration.test_slurm import SMALL, losses, make_script
from tests.slurm_cluster import Slurm

pytestmark = pytest.mark.faults

Submit = Callable[..., str]
ARGUMENTS = [*SHARED, "train.precision=float64"]
REPLICAS = (3, 2, 4)  # of a job at its first start and after each requeue


@pytest.fixture(scope="module")
def single(slurm: Slurm, base: Path) -> np.ndarray:
    """The losses of one replica, which every job must reproduce."""
    text = make_script(base, "single", "torch", "strategy=single", *ARGUMENTS, start="")
    job = slurm.submit(text, "--nodes=1", f"--output={base}/single.out")
    assert slurm.wait(job) == 0, (base / "single.out").read_text()
    return losses(base / "single")


@pytest.fixture
def submit(slurm: Slurm, base: Path) -> Submit:
    """Submit the script of deploy/ as a job of two nodes, whose files have its name. Return the id of the job."""

    def submit_job(name: str, replicas: str = "2") -> str:
        paths = [f"run_dir={base / name}", f"cache_dir={base / 'cache'}"]
        overrides = shlex.join([*SMALL, *ARGUMENTS, *paths, "cluster.timeout=90"])
        text = (ROOT / "deploy" / "slurm.sbatch").read_text()
        before, command, after = text.partition("python -m torch_impl.train")
        assert command
        text = f"{before}{sys.executable} -m torch_impl.train{after}".replace(
            "resume=auto", f"resume=auto {overrides} strategy.replicas={replicas}", 1
        )
        options = [f"--chdir={ROOT}", "--cpus-per-task=1", f"--output={base}/{name}.out"]
        return slurm.submit(text, *options)

    return submit_job


def assert_matches_single(run_dir: Path, single: np.ndarray) -> None:
    """Check that every step is recorded once, on the curve of one replica."""
    assert [row["step"] for row in read_rows(run_dir / "metrics.jsonl")] == list(range(1, STEPS + 1))
    np.testing.assert_allclose(losses(run_dir), single, rtol=0, atol=1e-9)
    assert [row["step"] for row in read_rows(run_dir / "evals.jsonl")] == [20, 40, 60]
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "completed"


@pytest.mark.survives("two Slurm jobs on the same two nodes")
def test_two_jobs_on_the_same_nodes(slurm: Slurm, submit: Submit, base: Path, single: np.ndarray) -> None:
    jobs = {name: submit(name) for name in ("first", "second")}
    for name, job in jobs.items():
        assert slurm.wait(job) == 0, (base / f"{name}.out").read_text()
        assert_matches_single(base / name, single)


@pytest.mark.survives("`scontrol requeue` of a Slurm job, which resumes on one of its two nodes, with fewer replicas")
@pytest.mark.survives("a Slurm job's time limit: requeued, it resumes on more nodes, with more replicas")
def test_a_job_is_queued_again(slurm: Slurm, submit: Submit, base: Path, single: np.ndarray, fault_step: int) -> None:
    """Let an administrator requeue the job. Then let it requeue itself, when slurmctld announces its time limit."""
    run_dir, output = base / "requeued", base / "requeued.out"
    job = submit("requeued", f"$(set -- {' '.join(map(str, REPLICAS))}; shift ${{SLURM_RESTART_COUNT:-0}}; echo $1)")
    wait_until(lambda: len(losses(run_dir)) >= fault_step // 2)
    slurm.check("scontrol", "requeue", job)
    _change(slurm, job, run_dir, "NumNodes=1", "NumTasks=1")

    reached = len(losses(run_dir))
    wait_until(lambda: len(losses(run_dir)) >= reached + fault_step // 2)
    # slurmctld checks time limits only every 30 s. The job must not end before.
    for process in _find_processes(run_dir):
        process.send_signal(signal.SIGSTOP)
    slurm.check("scontrol", "update", f"JobId={job}", "EndTime=now+2minutes")
    log = slurm.directory / "slurmctld.log"
    wait_until(lambda: f"warning signal {signal.SIGTERM:d} to JobId={job}\n" in log.read_text())
    for process in _find_processes(run_dir):
        process.send_signal(signal.SIGCONT)
    _change(slurm, job, run_dir, "NumNodes=2", "NumTasks=2", "TimeLimit=60")

    assert slurm.wait(job) == 0, output.read_text()
    assert_matches_single(run_dir, single)
    replicas = [row["replicas"] for row in read_rows(run_dir / "metrics.jsonl")]
    assert tuple(each for each, _ in groupby(replicas)) == REPLICAS


def _change(slurm: Slurm, job: str, run_dir: Path, *changes: str) -> None:
    """Change a job as soon as it is requeued. A checkpoint must hold its last step."""
    wait_until(lambda: " JobState=PENDING " in slurm.show(job))
    slurm.check("scontrol", "hold", job)
    wait_until(lambda: not _find_processes(run_dir))
    slurm.check("scontrol", "update", f"JobId={job}", *changes)
    slurm.check("scontrol", "release", job)
    checkpoint = find_newest_checkpoint(run_dir)
    assert checkpoint is not None and checkpoint.position.step == len(losses(run_dir)) < STEPS


@pytest.mark.survives("SIGKILL of slurmd and all that it started on one of two nodes: the other node ends too")
@pytest.mark.survives("a Slurm node that is lost: the job, requeued, resumes on the one that is left")
def test_a_node_is_lost(slurm: Slurm, submit: Submit, base: Path, single: np.ndarray, fault_step: int) -> None:
    """Kill everything on a node, as a power failure does. Slurm itself would notice after five minutes."""
    job, run_dir, output = submit("lost"), base / "lost", base / "lost.out"
    wait_until(lambda: len(losses(run_dir)) >= fault_step)
    assert _find_processes(run_dir)
    daemon = slurm.daemons.pop()
    daemon.kill()
    daemon.wait()
    wait_until(lambda: f"the command on host {ADDRESSES[1]} ended or cannot be reached" in output.read_text())
    wait_until(lambda: not _find_processes(run_dir))
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "failed"
    slurm.check("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=lost")  # as Slurm does in the end
    wait_until(lambda: " JobState=PENDING " in slurm.show(job))
    slurm.check("scontrol", "update", f"JobId={job}", "NumNodes=1", "NumTasks=1")
    assert slurm.wait(job) == 0, output.read_text()
    assert_matches_single(run_dir, single)


def _find_processes(run_dir: Path) -> list[psutil.Process]:
    """Return the processes of a run on this machine, without srun, which waits for the lost node."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if command[:1] == [sys.executable] and any(str(run_dir) in argument for argument in command):
                processes.append(process)
    return processes
