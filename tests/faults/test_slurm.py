"""Jobs on a real Slurm of two nodes: two on the same nodes at once, and one that loses a node."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.two_hosts import ADDRESSES
from tests.conftest import wait_until
from tests.faults.conftest import CORPUS, SHARED, STEPS
from tests.integration.test_slurm import losses, script
from tests.slurm_cluster import Slurm

pytestmark = pytest.mark.faults

Submit = Callable[..., str]


@pytest.fixture
def submit(slurm: Slurm, base: Path) -> Submit:
    """Submit a job that trains on both nodes; its directory and output are named after it. Returns its id."""

    def begin(name: str, nodes: int = 2) -> str:
        text = script(base, name, "torch", "strategy=allreduce", f"strategy.replicas={nodes}", *CORPUS, *SHARED)
        options = [f"--nodes={nodes}", f"--output={base}/{name}.out"]
        return slurm.submit(text, *options, wait=False).stdout.strip()

    return begin


@pytest.mark.survives("two Slurm jobs on the same two nodes")
def test_two_jobs_on_the_same_nodes(slurm: Slurm, submit: Submit, base: Path) -> None:
    jobs = [submit("first"), submit("second"), submit("on-one-node", 1)]
    wait_until(lambda: not any(slurm.is_queued(job) for job in jobs), 180)
    for name in ("first", "second", "on-one-node"):
        assert len(losses(base / name)) == STEPS, (base / f"{name}.out").read_text()
        np.testing.assert_allclose(losses(base / name), losses(base / "on-one-node"), atol=1e-5)


@pytest.mark.survives("SIGKILL of slurmd and all that it started on one of two nodes: the other node ends too")
def test_a_node_is_lost(slurm: Slurm, submit: Submit, base: Path, moment: int) -> None:
    """As where it loses its power. Slurm itself would notice after five minutes."""
    job = submit("lost")
    wait_until(lambda: len(losses(base / "lost")) >= moment, 120)
    assert _processes(base / "lost")
    daemon = slurm.daemons.pop()
    daemon.kill()
    daemon.wait()
    output = base / "lost.out"
    wait_until(lambda: f"the command on host {ADDRESSES[1]} ended or cannot be reached" in output.read_text(), 30)
    wait_until(lambda: not _processes(base / "lost"), 10)
    assert json.loads((base / "lost" / "summary.json").read_text())["status"] == "failed"
    slurm.command("scancel", job)


def _processes(run_dir: Path) -> list[int]:
    """The ids of those of a run on this machine; srun, which waits for the lost node, is not the run's."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if command[:1] == [sys.executable] and any(str(run_dir) in each for each in command):
                found.append(process.pid)
    return found
