"""Several commands of one machine, as if each were on a host of its own."""

import signal
import socket
import time
from contextlib import suppress

import pytest

from common.cluster import peer_monitor
from common.cluster.peer_monitor import PeerMonitor
from common.cluster.topology import Nodes
from tests.conftest import wait_until

PROCESSES = 2
HOSTS = ("127.0.0.1", "127.0.0.1", "127.0.0.1")


@pytest.fixture
def port() -> int:
    """The first of a host's ports; the commands', and the one after it, are free."""
    while True:
        with suppress(OSError), socket.create_server(("", 0)) as server:
            port = int(server.getsockname()[1])
            with socket.create_server(("", port + 1)):
                return port - PROCESSES


def connected(port: int, hosts: int, leader_first: bool = True) -> list[PeerMonitor]:
    """The monitors of some hosts, once all are connected to the first one's."""
    order = range(hosts) if leader_first else reversed(range(hosts))
    made = {node: PeerMonitor(Nodes(HOSTS[:hosts], node, port), PROCESSES) for node in order}
    monitors = [made[node] for node in range(hosts)]
    wait_until(lambda: [len(monitor._held) for monitor in monitors] == [hosts - 1, *[1] * (hosts - 1)])
    return monitors


def test_a_run_on_one_host_has_none() -> None:
    monitor = PeerMonitor(Nodes(), PROCESSES)
    monitor.close(0)
    assert (monitor.lost, monitor.ended, monitor.signum) == (None, None, None)


def test_the_port_is_after_those_of_the_processes() -> None:
    assert Nodes(("a", "b"), 1, 29500).monitor_port(3) == 29503


@pytest.mark.parametrize("leader_first", [True, False])
def test_an_exit_code_of_zero_is_passed(port: int, leader_first: bool) -> None:
    leader, other = connected(port, 2, leader_first)
    leader.close(0)
    other.wait()
    assert (other.ended, other.lost, other.signum) == (0, None, None)
    leader, other = connected(port + 1, 2, leader_first)
    other.close(0)
    wait_until(lambda: leader.ended is not None)
    assert (leader.ended, leader.lost, leader.signum) == (0, None, None)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_signal_is_passed_to_every_host(port: int, signum: signal.Signals, node: int) -> None:
    """By way of the first one, whose command ends for the same reason."""
    leader, *others = connected(port, 3)
    if node:
        others.pop(node - 1).close(128 + signum)
        wait_until(lambda: leader.ended is not None)
        assert (leader.ended, leader.signum, leader.lost) == (128 + signum, signum, None)
    leader.close(128 + signum)
    wait_until(lambda: all(other.ended is not None for other in others))
    assert [(other.ended, other.signum, other.lost) for other in others] == [(128 + signum, signum, None)] * len(others)


@pytest.mark.parametrize("exit_code", [1, 2, None])
@pytest.mark.parametrize("node", [0, 1])
def test_a_command_that_failed_is_lost(port: int, node: int, exit_code: int | None) -> None:
    """As one that ended without an exit code, as after SIGKILL."""
    monitors = connected(port, 2)
    ended, other = monitors[node], monitors[1 - node]
    if exit_code is None:
        for connection in ended._held:
            connection.shutdown(socket.SHUT_RDWR)
    else:
        ended.close(exit_code)
    wait_until(lambda: other.lost is not None)
    assert (other.lost, other.ended, other.signum) == (
        "the command on host 127.0.0.1 ended or cannot be reached",
        None,
        None,
    )


def test_waiting_for_the_first_host_has_an_end(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_monitor, "WAIT_SECONDS", 0.1)
    _, other = connected(port, 2)
    start = time.monotonic()
    other.wait()
    assert 0.1 <= time.monotonic() - start < 5
    assert other.ended is None


def test_to_close_after_the_others_have_is_no_error(port: int) -> None:
    leader, other = connected(port, 2)
    other.close(0)
    leader.close(0)
    other.close(0)
    leader.close(0)
