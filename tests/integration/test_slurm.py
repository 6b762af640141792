"""Runs on two nodes of a real Slurm draw the curve of one replica, and stop and resume as the scheduler says."""

import json
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from common.run.rows import read_rows
from tests.conftest import SMALL_MODEL, wait_until
from tests.slurm_cluster import Slurm

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = ["data.train_examples=300", "data.validation_examples=60", *SMALL_MODEL, "schedule=constant"]
RUNS = {
    "ddp": ("torch", ["strategy=ddp", "strategy.replicas=2", "cluster=slurm"]),
    "parameter_server": ("torch", ["strategy=parameter_server", "strategy.workers=1", "strategy.max_staleness=0"]),
    "multiworker": ("tf", ["strategy=multiworker", "strategy.replicas=2"]),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Storage that both nodes see."""
    return tmp_path_factory.mktemp("slurm")


def script(directory: Path, name: str, framework: str, *arguments: str, start: str = "srun") -> str:
    """A job's script that trains on every node, as `name`."""
    places = [f"run_dir={directory / name}", f"cache_dir={directory / 'cache'}", "cluster.timeout=90"]
    command = [sys.executable, "-m", f"{framework}_impl.train", "cluster=auto", *SMALL, *places, *arguments]
    return f"cd {shlex.quote(str(ROOT))}\nexec {start} {shlex.join(command)}"


def losses(run_dir: Path) -> np.ndarray:
    return np.array([row["loss"] for row in read_rows(run_dir / "metrics.jsonl")])


@pytest.fixture(scope="module")
def expected(slurm: Slurm, directory: Path) -> np.ndarray:
    """The losses of one replica, as a job without srun trains it."""
    one = script(directory, "single", "torch", "strategy=single", "train.steps=40", start="")
    done = slurm.submit(one, "--nodes=1", f"--output={directory}/single.out")
    assert done.returncode == 0, (directory / "single.out").read_text()
    return losses(directory / "single")


@pytest.mark.parametrize("name", RUNS)
def test_a_job_of_two_nodes_draws_the_curve_of_one_replica(
    slurm: Slurm, directory: Path, expected: np.ndarray, name: str
) -> None:
    framework, arguments = RUNS[name]
    done = slurm.submit(
        script(directory, name, framework, *arguments, "train.steps=6"), f"--output={directory}/{name}.out"
    )
    said = (directory / f"{name}.out").read_text()
    assert done.returncode == 0, said
    np.testing.assert_allclose(losses(directory / name)[:5], expected[:5], rtol=1e-5)
    assert len(losses(directory / name)) == 6
    if name != "ddp":
        assert {f"cluster=slurm, node {node} of 2: SLURM_JOB_ID is set" for node in (0, 1)} <= set(said.splitlines())
    assert json.loads((directory / name / "summary.json").read_text())["status"] == "completed"


def test_a_job_that_is_told_to_stop_resumes_where_it_was(slurm: Slurm, directory: Path, expected: np.ndarray) -> None:
    run_dir, output = directory / "stopped", directory / "stopped.out"
    arguments = ["strategy=allreduce", "strategy.replicas=2", "train.steps=40", "train.log_every=1", "resume=auto"]
    job = slurm.submit(
        script(directory, "stopped", "torch", *arguments), f"--output={output}", wait=False
    ).stdout.strip()
    wait_until(lambda: len(read_rows(run_dir / "metrics.jsonl")) >= 5, 120)
    assert slurm.command("scancel", "--signal=TERM", job).returncode == 0
    wait_until(lambda: not slurm.is_queued(job), 60)
    stopped = len(losses(run_dir))
    assert 5 <= stopped < 40, output.read_text()
    assert output.read_text().count("Exited with exit code 143") == 2
    again = slurm.submit(script(directory, "stopped", "torch", *arguments), f"--output={output}")
    assert again.returncode == 0, output.read_text()
    assert [row["step"] for row in read_rows(run_dir / "metrics.jsonl")] == list(range(1, 41))
    np.testing.assert_allclose(losses(run_dir), expected, rtol=1e-4)


def test_the_script_of_deploy_queues_its_job_again(slurm: Slurm, directory: Path, expected: np.ndarray) -> None:
    """Slurm sends the tasks SIGTERM before the time limit and on preemption, as scancel does here."""
    run_dir, output = directory / "again", directory / "again.out"
    places = [f"run_dir={run_dir}", f"cache_dir={directory / 'cache'}", "cluster.timeout=90"]
    small = [*SMALL, *places, "strategy.replicas=2", "train.steps=40", "train.log_every=1"]
    text = (ROOT / "deploy" / "slurm.sbatch").read_text()
    (start,) = (line for line in text.splitlines() if line.startswith("srun python "))
    train = shlex.join([sys.executable, *start.split()[2:], *small])
    text = text.replace(start, f"cd {shlex.quote(str(ROOT))}\nsrun {train}")
    job = slurm.submit(text, f"--output={output}", "--cpus-per-task=1", wait=False).stdout.strip()
    wait_until(lambda: len(read_rows(run_dir / "metrics.jsonl")) >= 5, 120)
    assert slurm.command("scancel", "--signal=TERM", job).returncode == 0
    wait_until(lambda: slurm.command("squeue", "-h", "-o", "%T").stdout.split() == ["PENDING"], 60)
    assert 5 <= len(losses(run_dir)) < 40, output.read_text()
    time.sleep(5)  # slurmd revokes a credential that is issued as the old one ends
    assert slurm.command("scontrol", "update", f"JobId={job}", "StartTime=now").returncode == 0  # not in two minutes
    wait_until(lambda: not slurm.is_queued(job), 120)
    assert [row["step"] for row in read_rows(run_dir / "metrics.jsonl")] == list(range(1, 41)), output.read_text()
    np.testing.assert_allclose(losses(run_dir), expected, rtol=1e-4)


def test_the_command_must_be_started_once_on_every_node(slurm: Slurm, directory: Path) -> None:
    for start, expected in (
        ("", "SLURM_STEP_NODELIST, SLURM_STEP_NUM_TASKS is not set; start with srun --ntasks-per-node=1"),
        (
            "srun --ntasks=4",
            "SLURM_STEP_NUM_TASKS=4: there are 2 nodes; start with srun --ntasks=2 --ntasks-per-node=1",
        ),
    ):
        output = directory / "mistake.out"
        mistake = script(directory, "mistake", "torch", "strategy=ddp", start=start)
        assert slurm.submit(mistake, "--overcommit", f"--output={output}").returncode == 2
        assert expected in output.read_text()
        assert not (directory / "mistake").exists()
