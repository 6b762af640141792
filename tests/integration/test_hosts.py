"""A run on two hosts, which are network namespaces of this machine, has the same curve as on one host."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.two_hosts import ADDRESSES
from common.cluster.topology import place_processes
from common.config.clusters import HostsSettings
from common.config.compose import load_config
from common.training.rows import read_rows
from tests.conftest import PACED, in_matrix, selected_values, wait_until, wait_until_restartable
from tests.integration.host_commands import STEPS, CompletedRun, HostLauncher

pytestmark = pytest.mark.slow

PACED_STEPS = 200  # last a minute, until the test ends their pace
SYNCHRONOUS = ["strategy.workers=1", "strategy.max_staleness=0"]
RUNS = {
    "ddp": ("torch", ["strategy=ddp", "strategy.replicas=2"]),
    "ring": ("torch", ["strategy=allreduce", "strategy.algorithm=ring", "strategy.replicas=2"]),
    "parameter_server": ("torch", ["strategy=parameter_server", *SYNCHRONOUS]),
    "torchrun": ("torch", ["strategy=ddp"]),
    "multiworker": ("tf", ["strategy=multiworker", "strategy.workers=2"]),
    "tf_parameter_server": ("tf", ["strategy=parameter_server", *SYNCHRONOUS]),
    "tf_config": ("tf", ["strategy=multiworker"]),
}


@pytest.fixture(scope="module")
def finished(
    launcher: HostLauncher, single: list[dict[str, Any]], request: pytest.FixtureRequest
) -> dict[str, CompletedRun]:
    """The runs that tests of this session need, up to three at a time."""
    names = sorted(RUNS.keys() & selected_values(request, "name"))
    with ThreadPoolExecutor(3) as pool:
        runs = pool.map(lambda name: launcher.start(name, RUNS[name][0], *RUNS[name][1]).wait_for_end(), names)
        return dict(zip(names, runs, strict=True))


@pytest.mark.parametrize(
    "name",
    [
        "parameter_server",
        "torchrun",
        "tf_config",
        in_matrix("ddp"),  # tests/faults/test_hosts.py compares its curve
        in_matrix("multiworker"),
        in_matrix("ring"),
        in_matrix("tf_parameter_server"),
    ],
)
def test_two_hosts_draw_the_curve_of_one(
    finished: dict[str, CompletedRun], single: list[dict[str, Any]], name: str
) -> None:
    run = finished[name]
    assert run.exit_codes == [0, 0], run.errors
    if name not in ("torchrun", "tf_config"):
        assert run.errors == ["", ""]
        assert sorted(path.name for path in Path(f"{run.run_dir}-node1").iterdir()) == [
            ".lock",
            "config.yaml",
            "prepared.json",
            "processes.json",
            "train.log",
        ]
    rows = read_rows(run.run_dir / "metrics.jsonl")
    assert len(rows) == STEPS
    for key in ("loss", "grad_norm"):
        assert np.abs([row[key] - one[key] for row, one in zip(rows, single, strict=True)]).max() <= 1e-6


@pytest.mark.parametrize("name", ["parameter_server", in_matrix("tf_parameter_server")])
def test_worker_and_server_are_on_different_hosts(finished: dict[str, CompletedRun], name: str) -> None:
    config = load_config(finished[name].run_dir / "config.yaml")
    assert isinstance(config.cluster, HostsSettings)
    tasks = place_processes(config.cluster.hosts, config.strategy.roles, range(config.cluster.port, 65000))
    assert {str(task): task.host_index for task in tasks} == {"chief 0": 0, "ps 0": 0, "worker 0": 1}


@pytest.mark.parametrize("kind", ["ddp", in_matrix("multiworker")])
def test_hosts_whose_configs_differ_are_refused(
    launcher: HostLauncher, single: list[dict[str, Any]], kind: str
) -> None:
    framework, arguments = RUNS[kind]
    run = launcher.start(f"refused-{kind}", framework, *arguments, node_1_overrides=["train.seed=1"]).wait_for_end()
    assert run.exit_codes == [2, 2]
    second, first = ("rank 1", "rank 0") if framework == "torch" else ("worker 1", "worker 0")
    differences = "train.seed (1, not 0), initial weights"
    assert run.errors == [f"error: {second} differs from {first} in {differences}; use the same on every host\n"] * 2


def test_a_host_that_never_arrives_is_named(launcher: HostLauncher, single: list[dict[str, Any]]) -> None:
    run = launcher.start("alone", "torch", *RUNS["ddp"][1], "cluster.timeout=2", nodes=(0,)).wait_for_end()
    assert run.exit_codes == [1]
    assert run.errors == ["error: cluster.timeout=2: the command on host 10.0.0.2 did not arrive in time\n"]


def test_a_wrong_node_number_is_an_error(launcher: HostLauncher) -> None:
    run = launcher.start(
        "wrong-node", "tf", *RUNS["multiworker"][1], nodes=[1], node_1_overrides=["cluster.node=0"]
    ).wait_for_end()
    assert run.exit_codes == [2]
    assert run.errors == [
        f"error: cluster.node: {ADDRESSES[0]} is not a network address of this machine; "
        "set it to the index of this host\n"
    ]
    assert not run.run_dir.exists()


def test_every_host_says_that_the_run_failed(launcher: HostLauncher, single: list[dict[str, Any]]) -> None:
    run = launcher.start("fails", "torch", *RUNS["parameter_server"][1], "optimizer.learning_rate=1e30").wait_for_end()
    assert run.exit_codes == [1, 1]
    assert "the loss is" in run.errors[0]
    assert run.errors[1].startswith(f"failed: the command on host {ADDRESSES[0]} ended or cannot be reached")


@pytest.mark.parametrize("node", [in_matrix(0), 1])
def test_if_one_command_is_killed_the_other_ends_too(
    launcher: HostLauncher, single: list[dict[str, Any]], node: int
) -> None:
    """Otherwise the coordinator of a parameter server would wait for its worker forever."""
    arguments = ["strategy=parameter_server", "strategy.workers=1", "train.steps=1000000", "train.log_every=1"]
    run = launcher.start(f"killed-{node}", "torch", *arguments)
    metrics = run.run_dir / "metrics.jsonl"
    wait_until(lambda: len(read_rows(metrics)) > 3)
    started = [child for process in run.processes for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(started) == 3
    run.processes[node].send_signal(signal.SIGKILL)
    ended = run.wait_for_end()
    assert ended.exit_codes[node] == -signal.SIGKILL and ended.exit_codes[1 - node] == 1
    lines = ended.errors[
        1 - node
    ].splitlines()  # the error of its chief, if the chief notices in time, and the host that has ended
    assert 1 <= len(lines) <= 2 and all(line.startswith("failed: ") for line in lines)
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive
    if node == 1:
        assert json.loads((run.run_dir / "summary.json").read_text())["status"] == "failed"


@pytest.mark.faults
@pytest.mark.parametrize(("framework", "worker"), [("torch", "rank 2"), in_matrix("tf", "worker 0")])
def test_a_worker_is_restarted_on_its_host(
    launcher: HostLauncher, framework: str, worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch is lost. PyTorch applies no update twice; TensorFlow reports an update that it applies twice."""
    pace_end = tmp_path / "pace-end"
    monkeypatch.setenv("PACE_END", str(pace_end))
    arguments = ["strategy=parameter_server", "strategy.workers=2", f"train.steps={PACED_STEPS}", "train.log_every=1"]
    run = launcher.start(f"back-{framework}", framework, *arguments, PACED)
    metrics, processes = run.run_dir / "metrics.jsonl", Path(f"{run.run_dir}-node1") / "processes.json"
    run.wait_for(lambda: len(read_rows(metrics)) > 3)
    pid = json.loads(processes.read_text())[worker]
    wait_until_restartable(pid)
    os.kill(pid, signal.SIGKILL)
    run.wait_for(lambda: json.loads(processes.read_text())[worker] != pid)
    row_count = len(read_rows(metrics))
    # The first rows may come from updates that the worker sent before.
    run.wait_for(lambda: any(row["worker"] == 0 for row in read_rows(metrics)[row_count + 8 :]))
    pace_end.touch()
    ended = run.wait_for_end()
    assert ended.exit_codes == [0, 0], ended.errors
    assert f"{worker} ended with signal SIGKILL; starting it again" in run.output(1).read_text()
    trained = [(row["batch"], row["part"]) for row in read_rows(metrics)]
    assert sorted(trained) == [(batch, part) for batch in range(1, PACED_STEPS + 1) for part in (0, 1)]
    summary = json.loads((run.run_dir / "summary.json").read_text())
    assert summary["version"] == len(trained) + len(summary.get("doubled_updates", []))
    assert summary["restarts"] == 0
