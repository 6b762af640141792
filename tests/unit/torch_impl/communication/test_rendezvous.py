"""Tests of ranks that never arrive: one line names them in time, and no process is left."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.cluster.ports import reserve_ports
from tests.conftest import ROOT

pytestmark = pytest.mark.slow  # the tests start many processes

TIMEOUT, LONG = 3, 60
ALL = r"""
import json, os, sys
import torch.distributed as dist
from common.errors import UserError
from torch_impl.communication.rendezvous import init_process_group, rendezvous

def join(timeout, seed):
    group = rendezvous(timeout, {"train.seed": seed})
    init_process_group(group, timeout, "gloo")
    dist.barrier()
    dist.destroy_process_group()
    return f"rank {group.rank} {group.world_size}"

cases = json.loads(sys.argv[1])
ranks = [(name, rank) for name, case in cases.items() for rank in case["ranks"]]
for name, rank in ranks:
    if os.fork() == 0:
        case = cases[name]
        os.environ |= {**case["environment"], "RANK": str(rank)}
        try:
            said = join(case["timeout"], rank if case["differ"] else 0)
        except UserError as error:
            said = f"exit code {error.exit_code}: {error}"
        os.write(1, json.dumps([name, said]).encode() + b"\n")  # in one piece
        os._exit(0)
for _ in ranks:
    os.wait()
"""
STORES = ("file", "server")
CASES: dict[str, dict[str, Any]] = {
    "all": {"world_size": 2, "ranks": [1, 0], "timeout": LONG},
    "another seed": {"world_size": 3, "ranks": [1, 0], "timeout": LONG, "differ": True},
    "ranks 1, 2": {"world_size": 3, "ranks": [0], "timeout": TIMEOUT},
    "rank 2": {"world_size": 3, "ranks": [0, 1], "timeout": TIMEOUT},
    "rank 0": {"world_size": 2, "ranks": [1], "timeout": TIMEOUT},
}
Said = dict[str, list[str]]


def environment(port: int, **values: object) -> dict[str, str]:
    variables = {"LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **values}
    return {name: str(value) for name, value in variables.items()}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Return the texts of the ranks by case and store. All cases run at once, in children of one process."""
    folder, cases = tmp_path_factory.mktemp("rendezvous"), {}
    with reserve_ports(len(CASES)) as ports:
        pass
    for (name, case), port in zip(CASES.items(), ports, strict=True):
        for store in STORES:
            values: dict[str, object] = {"WORLD_SIZE": case["world_size"]}
            if store == "file":
                values["LOCKSTEP_RENDEZVOUS"] = folder / name
            cases[f"{name}, {store}"] = {"differ": False, **case, "environment": environment(port, **values)}
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        cases["taken"] = {"ranks": [0, 1], "timeout": TIMEOUT, "differ": False}
        cases["taken"]["environment"] = environment(taken, WORLD_SIZE=2)
        command = [sys.executable, "-c", ALL, json.dumps(cases)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    texts_by_case: Said = {name: [] for name in cases}
    for name, text in map(json.loads, done.stdout.splitlines()):
        texts_by_case[name].append(text.replace(str(taken), "PORT"))
    return {name: sorted(texts) for name, texts in texts_by_case.items()}


@pytest.mark.parametrize("store", STORES)
def test_all_arrive(said: Said, store: str) -> None:
    assert said[f"all, {store}"] == ["rank 0 2", "rank 1 2"]


@pytest.mark.parametrize("store", STORES)
def test_ranks_whose_settings_differ_are_refused_at_once(said: Said, store: str) -> None:
    difference = "exit code 2: rank 1 differs from rank 0 in train.seed (1, not 0); use the same on every host"
    assert said[f"another seed, {store}"] == [difference] * 2


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("missing", ["ranks 1, 2", "rank 2"])
def test_the_missing_are_named_by_all_that_arrived(said: Said, store: str, missing: str) -> None:
    message = f"exit code 1: cluster.timeout={TIMEOUT}: {missing} of 3 did not arrive in time"
    assert said[f"{missing}, {store}"] == [message] * len(CASES[missing]["ranks"])


@pytest.mark.parametrize("store", STORES)
def test_rank_0_is_missing(said: Said, store: str) -> None:
    (text,) = said[f"rank 0, {store}"]
    message = rf"exit code 1: cluster.timeout={TIMEOUT}: rank 0 (of 2 )?did not arrive in time( \(127.*refused\))?"
    assert re.fullmatch(message, text)


def test_a_port_where_something_else_listens(said: Said) -> None:
    other_rank, rank_0 = said["taken"]
    assert rank_0.startswith("exit code 2: MASTER_PORT=PORT: cannot listen on it (")
    problem = "another program listens at 127.0.0.1, not rank 0; choose another port"
    assert other_rank == f"exit code 2: MASTER_PORT=PORT: {problem}"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, int, str]]:
    """Start one rank of each of two runs with three ranks. Return run directories, exit codes and standard errors."""
    started = []
    with reserve_ports(2) as ports:
        pass
    for rank, port in enumerate(ports):
        folder = tmp_path_factory.mktemp(f"rank-{rank}")
        command = [sys.executable, "-m", "torch_impl.train", "strategy=ddp", f"cluster.timeout={TIMEOUT}"]
        process = subprocess.Popen(
            [*command, "model=convnet", "train.steps=2", f"run_dir={folder / 'run'}"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment(port, RANK=rank, WORLD_SIZE=3)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append((folder / "run", process))
    ended = [(run_dir, process.communicate(timeout=120)[1], process.returncode) for run_dir, process in started]
    return [(run_dir, code, errors) for run_dir, errors, code in ended]


@pytest.mark.parametrize(("rank", "missing"), [(0, "ranks 1, 2 of 3"), (1, "rank 0")])
def test_the_command(commands: list[tuple[Path, int, str]], rank: int, missing: str) -> None:
    run_dir, exit_code, errors = commands[rank]
    assert exit_code == 1
    start = "error" if rank else "failed"
    assert re.fullmatch(rf"{start}: cluster\.timeout={TIMEOUT}: {missing} did not arrive in time.*\n", errors)
    if rank == 0:
        summary = json.loads((run_dir / "summary.json").read_text())
        assert (summary["status"], summary["replicas"], summary["steps"]) == ("failed", 3, 0)
        assert summary["error"] == f"cluster.timeout={TIMEOUT}: {missing} did not arrive in time"
    else:
        assert not run_dir.exists(), "only the chief may write"
