"""Faults of runs on two hosts, which are network namespaces of this machine."""

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
from tests.faults.conftest import DDP, MULTIWORKER, RecordFigures, Run, Start, assert_same_curve

pytestmark = pytest.mark.faults
MATRIX = pytest.mark.matrix

TIMEOUT = 45  # seconds; the run notices a silent host after 30 seconds


class Commands:
    """The commands of a run, one on each host. A killed command can be started again."""

    def __init__(
        self,
        start: Start,
        hosts: TwoHosts,
        kind: Sequence[str],
        overrides: Sequence[str],
        name: str = "",
        node_1_overrides: Sequence[str] = (),
    ) -> None:
        self.start = lambda node: start(
            *kind,
            "cluster=hosts",
            f"cluster.hosts=[{','.join(ADDRESSES)}]",
            f"cluster.node={node}",
            f"cluster.timeout={TIMEOUT}",
            "resume=auto",
            *overrides,
            *(node_1_overrides if node == 1 else ()),
            command=lambda command: hosts.wrap_command(node, command),
            name=name,
        )
        self.nodes: list[Run] = [self.start(node) for node in range(2)]

    def kill(self, node: int) -> None:
        """Kill the command of a host. Its processes end with it."""
        self.nodes[0].mark_fault()
        self.nodes[node].process.kill()
        self.nodes[node].wait_for_end()

    def send_signal(self, name: str) -> None:
        """Kill a process on the second host."""
        chief = self.nodes[0]
        chief.mark_fault()
        pids = json.loads(Path(f"{self.nodes[1].run_dir}-node1", "processes.json").read_text())
        os.kill(pids[name], signal.SIGKILL)

    def assert_same_curve(self, reference_rows: list[dict[str, Any]]) -> str:
        """Check that the run has completed on both hosts, on the reference curve. Return the output of the chief."""
        outputs = [run.wait_for_end() for run in self.nodes]
        assert_same_curve(self.nodes[0], reference_rows, outputs[0])
        assert self.nodes[1].process.returncode == 0, outputs[1]
        return outputs[0]


@pytest.fixture
def start_on_hosts(start: Start, hosts: TwoHosts) -> Callable[..., Commands]:
    """Start a run on both hosts."""
    return lambda kind, *overrides, **options: Commands(start, hosts, kind, overrides, **options)


def wait_for_recovery(commands: Commands, record_figures: RecordFigures) -> None:
    seconds, lost = commands.nodes[0].wait_for_recovery()
    record_figures(seconds, lost)


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
    start_on_hosts: Callable[..., Commands],
    reference_rows: list[dict[str, Any]],
    fault_step: int,
    record_figures: RecordFigures,
    kind: tuple[str, ...],
    victim: str,
) -> None:
    commands = start_on_hosts(kind, "train.max_restarts=1")
    commands.nodes[0].wait_for_step(fault_step)
    commands.send_signal(victim)
    wait_for_recovery(commands, record_figures)
    output = commands.assert_same_curve(reference_rows)
    assert "; restarting from the newest checkpoint" in output
    assert commands.nodes[0].summary["restarts"] == 1


def list_received_checkpoints(directory: Path) -> list[str]:
    """Return the checkpoints that the second host has received. The run directory of the first host is not there."""
    assert [path.name for path in directory.iterdir()] == ["run-node1"]
    return [path.name for path in directory.glob("run-node1/checkpoints/*")]


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
    start_on_hosts: Callable[..., Commands],
    reference_rows: list[dict[str, Any]],
    fault_step: int,
    record_figures: RecordFigures,
    tmp_path: Path,
    kind: tuple[str, ...],
    victim: str,
) -> None:
    """Kill a process, then all commands, which a scheduler would start again."""
    commands = start_on_hosts(kind, "train.max_restarts=1", node_1_overrides=[f"run_dir={tmp_path / 'run'}"])
    commands.nodes[0].wait_for_step(fault_step)
    commands.send_signal(victim)
    wait_for_recovery(commands, record_figures)
    first_received = list_received_checkpoints(tmp_path)
    commands.nodes[0].wait_for_step(max(fault_step + 1, 45))
    for run in commands.nodes:
        run.process.kill()
        run.wait_for_end()
    commands.nodes = [commands.start(node) for node in range(2)]
    commands.assert_same_curve(reference_rows)
    newest = commands.nodes[0].summary["resumed_from"]
    assert newest >= 30 and list_received_checkpoints(tmp_path) == [f"step-{newest:08}"] != first_received


@pytest.mark.parametrize("node", [pytest.param(0, marks=MATRIX), 1])
@pytest.mark.survives("SIGKILL of the command on one of two hosts, started again there")
def test_a_command_is_killed_and_started_again(
    start_on_hosts: Callable[..., Commands],
    reference_rows: list[dict[str, Any]],
    fault_step: int,
    record_figures: RecordFigures,
    node: int,
) -> None:
    """Start a killed command again, as a scheduler does. The command of the other host waits for it."""
    commands = start_on_hosts(DDP, "train.max_restarts=1")
    commands.nodes[0].wait_for_step(fault_step)
    commands.kill(node)
    chief = commands.nodes[0]
    commands.nodes[node] = commands.start(node)
    commands.nodes[0].processes_before, commands.nodes[0].fault_at = chief.processes_before, chief.fault_at
    wait_for_recovery(commands, record_figures)
    commands.assert_same_curve(reference_rows)
    assert commands.nodes[0].summary["resumed_from"] > 0


def test_a_command_that_does_not_return_is_named(start_on_hosts: Callable[..., Commands], fault_step: int) -> None:
    commands = start_on_hosts(DDP, "train.max_restarts=1", "cluster.timeout=15")
    commands.nodes[0].wait_for_step(fault_step)
    commands.kill(1)
    output = commands.nodes[0].wait_for_end()
    assert commands.nodes[0].process.returncode == 1
    assert output.endswith(f"cluster.timeout=15: the command on host {ADDRESSES[1]} did not arrive in time\n"), output


@pytest.mark.survives("the network between two hosts cut for 5 s")
def test_the_network_is_cut_for_a_while(
    start_on_hosts: Callable[..., Commands],
    hosts: TwoHosts,
    reference_rows: list[dict[str, Any]],
    fault_step: int,
    record_figures: RecordFigures,
) -> None:
    commands = start_on_hosts(DDP, "train.max_restarts=1")
    chief = commands.nodes[0].wait_for_step(fault_step)
    chief.fault_at, reached = time.monotonic(), chief.step
    set_link(hosts, "down")
    time.sleep(5)  # the fault itself
    set_link(hosts, "up")
    chief.wait_for(lambda: chief.step > reached + 1)
    record_figures(time.monotonic() - chief.fault_at, 0)
    commands.assert_same_curve(reference_rows)


def test_the_network_is_cut_for_good(start_on_hosts: Callable[..., Commands], hosts: TwoHosts, fault_step: int) -> None:
    commands = start_on_hosts(DDP)
    commands.nodes[0].wait_for_step(fault_step)
    set_link(hosts, "down")
    try:
        outputs = [run.wait_for_end() for run in commands.nodes]
    finally:
        set_link(hosts, "up")
    assert [run.process.returncode for run in commands.nodes] == [1, 1], outputs
    for other_host, output in zip(reversed(ADDRESSES), outputs, strict=True):
        assert f"the command on host {other_host} ended or cannot be reached" in output


@pytest.mark.parametrize("times", [pytest.param(1, marks=MATRIX), pytest.param(20, marks=pytest.mark.bench)])
@pytest.mark.survives("SIGTERM to two hosts, up to 5 s apart")
def test_sigterm_to_all_hosts(
    start_on_hosts: Callable[..., Commands], fault_step: int, record_figures: RecordFigures, times: int
) -> None:
    """Signal both commands, as a scheduler does. All ranks stop after the same step, and its checkpoint is saved."""
    randomness = np.random.default_rng(fault_step)
    for number in range(times):
        commands = start_on_hosts(DDP, "train.steps=100000", name=f"sigterm-{times}-{number}")
        chief = commands.nodes[0].wait_for_step(fault_step)
        for run in randomness.permutation(np.array(commands.nodes, object)):
            run.process.send_signal(signal.SIGTERM)
            time.sleep(randomness.uniform(0, 5))  # the second signal may come at any moment, also after the end
        outputs = [run.wait_for_end() for run in commands.nodes]
        assert [run.process.returncode for run in commands.nodes] == [143, 143], outputs
        assert chief.summary["status"] == "interrupted"
        newest = max(path.name for path in (chief.run_dir / "checkpoints").iterdir())
        assert newest == f"step-{chief.step:08}"
    record_figures(tried=times)


def set_link(hosts: TwoHosts, state: str) -> None:
    """Set the link between the hosts up or down."""
    subprocess.run(["ip", "-n", hosts.names[0], "link", "set", "veth", state], check=True)
