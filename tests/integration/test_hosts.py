"""A run on two hosts, which are network namespaces of this machine, draws the curve that it draws on one."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.two_hosts import ADDRESSES
from common.cluster.supervisor import MIN_LIFETIME_SECONDS
from common.cluster.topology import place_processes as place_tasks
from common.config.clusters import HostsSettings
from common.config.compose import load_config
from common.training.rows import read_rows
from tests.conftest import in_matrix, selected_values, wait_until
from tests.integration.host_commands import STEPS, Place, Run

pytestmark = pytest.mark.slow

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
def finished(place: Place, single: list[dict[str, Any]], request: pytest.FixtureRequest) -> dict[str, Run]:
    """All runs that tests of this session need, a few at a time."""
    names = sorted(RUNS.keys() & selected_values(request, "name"))
    with ThreadPoolExecutor(3) as pool:
        runs = pool.map(lambda name: place.start(name, RUNS[name][0], *RUNS[name][1]).end(), names)
        return dict(zip(names, runs, strict=True))


@pytest.mark.parametrize(
    "name",
    [
        "ddp",
        "parameter_server",
        "torchrun",
        "multiworker",
        "tf_config",
        in_matrix("ring"),
        in_matrix("tf_parameter_server"),
    ],
)
def test_two_hosts_draw_the_curve_of_one(finished: dict[str, Run], single: list[dict[str, Any]], name: str) -> None:
    run = finished[name]
    assert run.codes == [0, 0], run.said
    if name not in ("torchrun", "tf_config"):
        assert run.said == ["", ""]
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
def test_worker_and_server_are_on_different_hosts(finished: dict[str, Run], name: str) -> None:
    config = load_config(finished[name].run_dir / "config.yaml")
    assert isinstance(config.cluster, HostsSettings)
    tasks = place_tasks(config.cluster.hosts, config.strategy.roles, range(config.cluster.port, 65000))
    assert {str(task): task.host_index for task in tasks} == {"chief 0": 0, "ps 0": 0, "worker 0": 1}


@pytest.mark.parametrize("name", ["ddp", in_matrix("multiworker")])
def test_hosts_whose_configs_differ_are_refused(place: Place, single: list[dict[str, Any]], name: str) -> None:
    framework, arguments = RUNS[name]
    run = place.start(f"refused-{name}", framework, *arguments, of_node_1=["train.seed=1"]).end()
    assert run.codes == [2, 2]
    who = ("rank 1", "rank 0") if framework == "torch" else ("worker 1", "worker 0")
    what = "train.seed (1, not 0), initial weights"
    assert run.said == [f"error: {who[0]} differs from {who[1]} in {what}; use the same on every host\n"] * 2


def test_a_host_that_never_arrives_is_named(place: Place, single: list[dict[str, Any]]) -> None:
    run = place.start("alone", "torch", *RUNS["ddp"][1], "cluster.timeout=2", nodes=(0,)).end()
    assert run.codes == [1]
    assert run.said == ["error: cluster.timeout=2: the command on host 10.0.0.2 did not arrive in time\n"]


def test_a_host_that_is_not_the_node_it_says(place: Place) -> None:
    run = place.start("elsewhere", "tf", *RUNS["multiworker"][1], nodes=[1], of_node_1=["cluster.node=0"]).end()
    assert run.codes == [2]
    assert run.said == [
        f"error: cluster.node: {ADDRESSES[0]} is no address of this machine in a network; give the node that it is\n"
    ]
    assert not run.run_dir.exists()


def test_every_host_says_that_the_run_failed(place: Place, single: list[dict[str, Any]]) -> None:
    run = place.start("fails", "torch", *RUNS["parameter_server"][1], "optimizer.learning_rate=1e30").end()
    assert run.codes == [1, 1]
    assert "the loss is" in run.said[0]
    assert run.said[1].startswith(f"failed: the command on host {ADDRESSES[0]} ended or cannot be reached; see ")


@pytest.mark.parametrize("node", [in_matrix(0), 1])
def test_where_one_command_is_killed_the_other_ends_too(place: Place, single: list[dict[str, Any]], node: int) -> None:
    """A parameter server's coordinator would wait for its worker for ever."""
    arguments = ["strategy=parameter_server", "strategy.workers=1", "train.steps=1000000", "train.log_every=1"]
    run = place.start(f"killed-{node}", "torch", *arguments)
    metrics = run.run_dir / "metrics.jsonl"
    wait_until(lambda: len(read_rows(metrics)) > 3, 60)
    started = [child for process in run.processes for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(started) == 3
    run.processes[node].send_signal(signal.SIGKILL)
    ended = run.end(20)
    assert ended.codes[node] == -signal.SIGKILL and ended.codes[1 - node] == 1
    lines = ended.said[1 - node].splitlines()  # what its own chief saw, if it saw it in time, and who is gone
    assert 1 <= len(lines) <= 2 and all(line.startswith("failed: ") for line in lines)
    _, alive = psutil.wait_procs(started, timeout=5)
    assert not alive
    if node == 1:
        assert json.loads((run.run_dir / "summary.json").read_text())["status"] == "failed"


@pytest.mark.faults
@pytest.mark.parametrize(("framework", "worker"), [("torch", "rank 2"), in_matrix("tf", "worker 0")])
def test_a_worker_is_restarted_on_its_host(
    place: Place, single: list[dict[str, Any]], framework: str, worker: str
) -> None:
    arguments = ["strategy=parameter_server", "strategy.workers=2", "train.steps=1000000", "train.log_every=1"]
    run = place.start(f"back-{framework}", framework, *arguments)
    metrics, processes = run.run_dir / "metrics.jsonl", Path(f"{run.run_dir}-node1") / "processes.json"
    wait_until(lambda: len(read_rows(metrics)) > 3, 60)
    time.sleep(MIN_LIFETIME_SECONDS + 1)  # one that crashes sooner is not restarted
    pid = json.loads(processes.read_text())[worker]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: json.loads(processes.read_text())[worker] != pid)
    known = len(read_rows(metrics))
    wait_until(lambda: any(row["worker"] == 0 for row in read_rows(metrics)[known + 8 :]), 60)
    run.processes[0].send_signal(signal.SIGTERM)
    ended = run.end(30)
    assert ended.codes[0] == 143, ended.said
    rows = read_rows(metrics)
    done = {(row["batch"], row["part"]) for row in rows}
    assert len(done) == len(rows)
