"""Runs on two hosts, network namespaces of this machine: what ends on one of them starts again on both."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.two_hosts import ADDRESSES, TwoHosts
from tests.faults.conftest import DDP, MULTIWORKER, Measured, Run, Start, assert_undisturbed

pytestmark = pytest.mark.faults
MATRIX = pytest.mark.matrix

TIMEOUT = 45  # seconds: a silent host is found after 30


class Commands:
    """The commands of a run, one on each host. Where one is killed it can be started again."""

    def __init__(
        self,
        start: Start,
        hosts: TwoHosts,
        kind: Sequence[str],
        overrides: Sequence[str],
        name: str = "",
        of_node_1: Sequence[str] = (),
    ) -> None:
        self.begin = lambda node: start(
            *kind,
            "cluster=hosts",
            f"cluster.hosts=[{','.join(ADDRESSES)}]",
            f"cluster.node={node}",
            f"cluster.timeout={TIMEOUT}",
            "resume=auto",
            *overrides,
            *(of_node_1 if node == 1 else ()),
            command=lambda command: hosts.wrap_command(node, command),
            name=name,
        )
        self.nodes: list[Run] = [self.begin(node) for node in range(2)]

    def kill(self, node: int) -> None:
        """The command of a host, with which its processes end."""
        self.nodes[0].mark()
        self.nodes[node].process.kill()
        self.nodes[node].end()

    def strike(self, name: str) -> None:
        """Kill a process on the second host."""
        chief = self.nodes[0]
        chief.mark()
        pids = json.loads(Path(f"{self.nodes[1].run_dir}-node1", "processes.json").read_text())
        os.kill(pids[name], signal.SIGKILL)

    def assert_undisturbed(self, undisturbed: list[dict[str, Any]]) -> str:
        """All have completed; the chief's curve is undisturbed. Returns what the chief's command said."""
        said = [run.end() for run in self.nodes]
        assert_undisturbed(self.nodes[0], undisturbed, said[0])
        assert self.nodes[1].process.returncode == 0, said[1]
        return said[0]


@pytest.fixture
def begin(start: Start, hosts: TwoHosts) -> Callable[..., Commands]:
    return lambda kind, *overrides, **others: Commands(start, hosts, kind, overrides, **others)


def recovered(commands: Commands, measured: Measured) -> None:
    seconds, lost = commands.nodes[0].recover()
    measured(seconds, lost)


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        pytest.param(DDP, "rank 1", id="ddp", marks=[pytest.mark.survives("SIGKILL of a ddp rank, two hosts"), MATRIX]),
        pytest.param(
            MULTIWORKER,
            "worker 1",
            id="multiworker",
            marks=[pytest.mark.survives("SIGKILL of a multiworker task, two hosts"), MATRIX],
        ),
    ],
)
def test_a_process_is_killed(
    begin: Callable[..., Commands],
    undisturbed: list[dict[str, Any]],
    moment: int,
    measured: Measured,
    kind: tuple[str, ...],
    victim: str,
) -> None:
    commands = begin(kind, "train.max_restarts=1")
    commands.nodes[0].at(moment)
    commands.strike(victim)
    recovered(commands, measured)
    said = commands.assert_undisturbed(undisturbed)
    assert "; restarting from the newest checkpoint" in said
    assert commands.nodes[0].summary["restarts"] == 1


def received(place: Path) -> list[str]:
    """The checkpoints that the second host has received; it has no run directory of the first one's."""
    assert [path.name for path in place.iterdir()] == ["run-node1"]
    return [path.name for path in place.glob("run-node1/checkpoints/*")]


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        pytest.param(DDP, "rank 1", id="ddp", marks=pytest.mark.survives("SIGKILL of a ddp rank, no shared storage")),
        pytest.param(
            MULTIWORKER,
            "worker 1",
            id="multiworker",
            marks=[pytest.mark.survives("SIGKILL of a multiworker task, no shared storage"), MATRIX],
        ),
    ],
)
def test_hosts_that_do_not_share_the_run_directory(
    begin: Callable[..., Commands],
    undisturbed: list[dict[str, Any]],
    moment: int,
    measured: Measured,
    tmp_path: Path,
    kind: tuple[str, ...],
    victim: str,
) -> None:
    """Killed in an attempt, then with all commands, as a scheduler does it that starts them again."""
    commands = begin(kind, "train.max_restarts=1", of_node_1=[f"run_dir={tmp_path / 'run'}"])
    commands.nodes[0].at(moment)
    commands.strike(victim)
    recovered(commands, measured)
    first = received(tmp_path)
    commands.nodes[0].at(max(moment + 1, 45))
    for run in commands.nodes:
        run.process.kill()
        run.end()
    commands.nodes = [commands.begin(node) for node in range(2)]
    commands.assert_undisturbed(undisturbed)
    newest = commands.nodes[0].summary["resumed_from"]
    assert newest >= 30 and received(tmp_path) == [f"step-{newest:08}"] != first


@pytest.mark.parametrize("node", [pytest.param(0, marks=MATRIX), 1])
@pytest.mark.survives("SIGKILL of the command on one of two hosts, started again there")
def test_a_command_is_killed_and_started_again(
    begin: Callable[..., Commands], undisturbed: list[dict[str, Any]], moment: int, measured: Measured, node: int
) -> None:
    """As a scheduler does it; the other host's command waits for it."""
    commands = begin(DDP, "train.max_restarts=1")
    commands.nodes[0].at(moment)
    commands.kill(node)
    before, since = commands.nodes[0].before, commands.nodes[0].since
    commands.nodes[node] = commands.begin(node)
    commands.nodes[0].before, commands.nodes[0].since = before, since
    recovered(commands, measured)
    commands.assert_undisturbed(undisturbed)
    assert commands.nodes[0].summary["resumed_from"] > 0


def test_a_command_that_does_not_return_is_named(begin: Callable[..., Commands], moment: int) -> None:
    commands = begin(DDP, "train.max_restarts=1", "cluster.timeout=15")
    commands.nodes[0].at(moment)
    commands.kill(1)
    said = commands.nodes[0].end(60)
    assert commands.nodes[0].process.returncode == 1
    assert said.endswith(f"cluster.timeout=15: the command on host {ADDRESSES[1]} did not arrive in time\n"), said


@pytest.mark.survives("the network between two hosts cut for 5 s")
def test_the_network_is_cut_for_a_while(
    begin: Callable[..., Commands],
    hosts: TwoHosts,
    undisturbed: list[dict[str, Any]],
    moment: int,
    measured: Measured,
) -> None:
    commands = begin(DDP, "train.max_restarts=1")
    chief = commands.nodes[0].at(moment)
    chief.since, reached = time.monotonic(), chief.step
    link(hosts, "down")
    time.sleep(5)
    link(hosts, "up")
    chief.wait(lambda: chief.step > reached + 1)
    measured(time.monotonic() - chief.since, 0)
    commands.assert_undisturbed(undisturbed)


def test_the_network_is_cut_for_good(begin: Callable[..., Commands], hosts: TwoHosts, moment: int) -> None:
    commands = begin(DDP)
    commands.nodes[0].at(moment)
    since = time.monotonic()
    link(hosts, "down")
    try:
        said = [run.end(2 * TIMEOUT) for run in commands.nodes]
    finally:
        link(hosts, "up")
    assert time.monotonic() - since < TIMEOUT
    assert [run.process.returncode for run in commands.nodes] == [1, 1], said
    for other, text in zip(reversed(ADDRESSES), said, strict=True):
        assert f"the command on host {other} ended or cannot be reached" in text


@pytest.mark.parametrize("times", [pytest.param(1, marks=MATRIX), pytest.param(20, marks=pytest.mark.bench)])
@pytest.mark.survives("SIGTERM to two hosts, up to 5 s apart")
def test_sigterm_to_all_hosts(begin: Callable[..., Commands], moment: int, measured: Measured, times: int) -> None:
    """As a scheduler sends it: all ranks leave after one agreed step, whose checkpoint is saved."""
    randomness = np.random.default_rng(moment)
    for number in range(times):
        commands = begin(DDP, "train.steps=100000", name=f"sigterm-{times}-{number}")
        chief = commands.nodes[0].at(moment)
        for run in randomness.permutation(np.array(commands.nodes, object)):
            run.process.send_signal(signal.SIGTERM)
            time.sleep(randomness.uniform(0, 5))
        said = [run.end(30) for run in commands.nodes]
        assert [run.process.returncode for run in commands.nodes] == [143, 143], said
        assert chief.summary["status"] == "interrupted"
        newest = max(path.name for path in (chief.run_dir / "checkpoints").iterdir())
        assert newest == f"step-{chief.step:08}"
    measured(tried=times)


def link(hosts: TwoHosts, state: str) -> None:
    subprocess.run(["ip", "-n", hosts.names[0], "link", "set", "veth", state], check=True)
