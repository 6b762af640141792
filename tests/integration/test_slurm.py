"""Runs on two nodes of a real Slurm cluster have the curve of one replica. They stop and resume with the scheduler."""

import json
import shlex
import sys
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from common.training.rows import read_rows
from tests.conftest import PACED, SMALL_IMAGES, in_matrix, selected_values, wait_until
from tests.slurm_cluster import Slurm

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = [*SMALL_IMAGES, PACED, "schedule=constant"]
SYNCHRONOUS = ["strategy=parameter_server", "strategy.workers=1", "strategy.max_staleness=0"]
RUNS = {
    "ddp": ("torch", ["strategy=ddp", "strategy.replicas=2", "cluster=slurm"]),
    "allreduce": ("torch", ["strategy=allreduce", "strategy.replicas=2"]),
    "parameter_server": ("torch", SYNCHRONOUS),
    "multiworker": ("tf", ["strategy=multiworker", "strategy.replicas=2"]),
    "tf_parameter_server": ("tf", SYNCHRONOUS),
}
JOBS = ((2, 3), (1, 2))  # the nodes and replicas of each job; tests/faults/test_slurm.py also adds a node


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that both nodes share."""
    return tmp_path_factory.mktemp("slurm")


def make_script(directory: Path, name: str, framework: str, *arguments: str, start: str = "srun") -> str:
    """Return the script of a job that trains on every node. `name` is the name of the run directory."""
    paths = [f"run_dir={directory / name}", f"cache_dir={directory / 'cache'}", "cluster.timeout=90"]
    command = [sys.executable, "-m", f"{framework}_impl.train", "cluster=auto", *SMALL, *paths, *arguments]
    return f"cd {shlex.quote(str(ROOT))}\nexec {start} {shlex.join(command)}"


def losses(run_dir: Path) -> np.ndarray:
    """Return the loss of every recorded step."""
    return np.array([row["loss"] for row in read_rows(run_dir / "metrics.jsonl")])


def has_steps(run_dir: Path, steps: int) -> bool:
    return len(losses(run_dir)) >= steps


@pytest.fixture(scope="module")
def expected(slurm: Slurm, directory: Path) -> np.ndarray:
    """The losses of one replica, from a job without srun."""
    text = make_script(directory, "single", "torch", "strategy=single", "train.steps=40", start="")
    job = slurm.submit(text, "--nodes=1", f"--output={directory}/single.out")
    assert slurm.wait(job) == 0, (directory / "single.out").read_text()
    return losses(directory / "single")


@pytest.fixture(scope="module")
def codes(slurm: Slurm, directory: Path, expected: np.ndarray, request: pytest.FixtureRequest) -> dict[str, int]:
    """The exit codes of the jobs that tests of this session need. Jobs share the nodes."""
    names = selected_values(request, "name")
    jobs = {
        name: slurm.submit(
            make_script(directory, name, framework, *arguments, "train.steps=6"), f"--output={directory}/{name}.out"
        )
        for name, (framework, arguments) in RUNS.items()
        if name in names
    }
    return {name: slurm.wait(job) for name, job in jobs.items()}


@pytest.mark.parametrize(
    "name", ["multiworker", *map(in_matrix, ("ddp", "allreduce", "parameter_server", "tf_parameter_server"))]
)
def test_a_job_of_two_nodes_draws_the_curve_of_one_replica(
    directory: Path, expected: np.ndarray, codes: dict[str, int], name: str
) -> None:
    output = (directory / f"{name}.out").read_text()
    assert codes[name] == 0, output
    np.testing.assert_allclose(losses(directory / name), expected[:6], atol=1e-5)
    if name != "ddp":
        assert {f"cluster=slurm, node {node} of 2: SLURM_JOB_ID is set" for node in (0, 1)} <= set(output.splitlines())
    assert json.loads((directory / name / "summary.json").read_text())["status"] == "completed"
    assert not (directory / f"{name}-node1" / "metrics.jsonl").exists(), "both nodes use one run directory"


def test_jobs_of_other_nodes_and_replicas_continue_the_curve(
    slurm: Slurm, directory: Path, expected: np.ndarray
) -> None:
    """Both jobs use the same run directory. The first one receives SIGTERM."""
    run_dir, output = directory / "stopped", directory / "stopped.out"
    for nodes, replicas in JOBS:
        reached = len(losses(run_dir))
        arguments = ["strategy=ddp", f"strategy.replicas={replicas}", "train.steps=40", "train.log_every=1"]
        text = make_script(directory, "stopped", "torch", *arguments, "resume=auto")
        job = slurm.submit(text, f"--nodes={nodes}", f"--output={output}")
        if replicas != JOBS[-1][1]:
            wait_until(partial(has_steps, run_dir, reached + 5))
            assert slurm.command("scancel", "--signal=TERM", job).returncode == 0
            assert slurm.wait(job) == 143, output.read_text()
            assert output.read_text().count("Exited with exit code 143") == nodes
            assert len(losses(run_dir)) < 40
        else:
            assert slurm.wait(job) == 0, output.read_text()
    rows = read_rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert [replicas for replicas, _ in groupby(row["replicas"] for row in rows)] == [replicas for _, replicas in JOBS]
    np.testing.assert_allclose(losses(run_dir), expected, atol=1e-5)


def test_the_command_must_be_started_once_on_every_node(slurm: Slurm, directory: Path) -> None:
    for start, expected in (
        ("", "SLURM_STEP_NODELIST, SLURM_STEP_NUM_TASKS is not set; start with srun --ntasks-per-node=1"),
        (
            "srun --ntasks=4",
            "SLURM_STEP_NUM_TASKS=4: there are 2 nodes; start with srun --ntasks=2 --ntasks-per-node=1",
        ),
    ):
        output = directory / "mistake.out"
        text = make_script(directory, "mistake", "torch", "strategy=ddp", start=start)
        assert slurm.wait(slurm.submit(text, "--overcommit", f"--output={output}")) == 2
        assert expected in output.read_text()
        assert not (directory / "mistake").exists()
