"""Tests of several commands on one machine that act as if each were on a separate host."""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import BinaryIO

import pytest

from common.cluster import peer_monitor
from common.cluster.checkpoint_transfer import BrokenTransferError, CheckpointTransfer
from common.cluster.peer_messages import CheckpointOffer
from common.cluster.peer_monitor import PeerMonitor
from common.cluster.topology import HostGroup
from common.errors import PeerTimeout, UserError
from tests.conftest import wait_until

PROCESSES = 2
LOST = "the command on host 127.0.0.1 ended or cannot be reached"
HOSTS = ("127.0.0.1", "127.0.0.1", "127.0.0.1")


@pytest.fixture
def port() -> int:
    """Return the first port of a host such that the port of the commands and the one after it are free."""
    while True:
        with suppress(OSError), socket.create_server(("", 0)) as server:
            port = int(server.getsockname()[1])
            with socket.create_server(("", port + 1)):
                return port - PROCESSES


class Transfer(CheckpointTransfer):
    """The transfer of a checkpoint that consists of the bytes `content`. None stands for the initial weights."""

    def __init__(self, content: bytes | None = None, own: bytes | None = None) -> None:
        self.content, self.own, self.followed = content, own, 0

    def make_offer(self) -> CheckpointOffer | None:
        return None if self.content is None else {"step": 7, "fingerprint": str(len(self.content))}

    def read_chunks(self) -> Iterator[bytes]:
        assert self.content is not None
        yield self.content

    def accept_offer(self, offer: object, fetch: Callable[[str], BinaryIO]) -> None:
        self.followed += 1
        match offer:
            case {"step": 7, "fingerprint": str(fingerprint)}:
                if self.own is None or str(len(self.own)) != fingerprint:
                    self.own = self.receive(fetch, fingerprint)
            case None:
                self.own = None

    def receive(self, fetch: Callable[[str], BinaryIO], fingerprint: str) -> bytes:
        with fetch(fingerprint) as stream:
            try:
                content = stream.read()
            except OSError as error:
                raise BrokenTransferError(str(error)) from error
        if str(len(content)) != fingerprint:
            raise BrokenTransferError("the connection was closed")
        return content


def begin(monitors: Sequence[PeerMonitor], attempts: Sequence[int]) -> list[int]:
    """Begin an attempt on all hosts. Each host proposes an attempt number. Return the agreed number of each host."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda monitor, attempt: monitor.begin_attempt(attempt, 10), monitors, attempts))


def connected(port: int, hosts: int) -> list[PeerMonitor]:
    """Return the monitors of some hosts that have begun an attempt."""
    monitors = [PeerMonitor(HostGroup(HOSTS[:hosts], node, port), PROCESSES, Transfer()) for node in range(hosts)]
    assert begin(monitors, [0] * hosts) == [0] * hosts
    return monitors


def outcome(monitor: PeerMonitor) -> tuple[str | None, int | None, bool]:
    return monitor.error, monitor.exit_code, monitor.is_final


def test_a_run_on_one_host_has_none() -> None:
    monitor = PeerMonitor(HostGroup(), PROCESSES, Transfer())
    assert monitor.begin_attempt(3, 0.1) == 3
    monitor.announce_next_attempt(4)
    monitor.close(0)
    assert (monitor.error, monitor.exit_code, monitor.stop_signal) == (None, None, None)


def test_the_port_is_after_those_of_the_processes() -> None:
    assert HostGroup(("a", "b"), 1, 29500).monitor_port(3) == 29503


def test_an_exit_code_of_zero_is_passed(port: int) -> None:
    leader, other = connected(port, 2)
    leader.close(0)
    other.wait_for_leader()
    assert (other.exit_code, other.error, other.stop_signal) == (0, None, None)
    leader, other = connected(port + 1, 2)
    other.close(0)
    wait_until(lambda: leader.exit_code is not None)
    assert (leader.exit_code, leader.error, leader.stop_signal) == (0, None, None)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_signal_is_passed_to_every_host(port: int, signum: signal.Signals, node: int) -> None:
    """The first host passes the signal to the others. Its command ends for the same reason."""
    leader, *others = connected(port, 3)
    if node:
        others.pop(node - 1).close(128 + signum)
        wait_until(lambda: leader.exit_code is not None)
        assert (leader.exit_code, leader.stop_signal, leader.error) == (128 + signum, signum, None)
    leader.close(128 + signum)
    wait_until(lambda: all(other.exit_code is not None for other in others))
    assert [(other.exit_code, other.stop_signal, other.error) for other in others] == [
        (128 + signum, signum, None)
    ] * len(others)


@pytest.mark.parametrize("exit_code", [1, 2, None])
@pytest.mark.parametrize("node", [0, 1])
def test_a_command_that_failed_is_lost(port: int, node: int, exit_code: int | None) -> None:
    """A command that ends without an exit code, for example after SIGKILL, is lost too."""
    monitors = connected(port, 2)
    ended, other = monitors[node], monitors[1 - node]
    if exit_code is None:
        for lines in ended._connected.values():
            lines.connection.shutdown(socket.SHUT_RDWR)
    else:
        ended.close(exit_code)
    wait_until(lambda: other.error is not None)
    final = exit_code == 2 or (exit_code == 1 and node == 0)  # after other exit codes the hosts may start again
    assert outcome(other) == (LOST, None, final)


def test_waiting_for_the_first_host_has_an_end(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_monitor, "WAIT_SECONDS", 0.1)
    _, other = connected(port, 2)
    start = time.monotonic()
    other.wait_for_leader()
    assert time.monotonic() - start >= 0.1
    assert other.exit_code is None


def test_to_close_after_the_others_have_is_no_error(port: int) -> None:
    leader, other = connected(port, 2)
    other.close(0)
    leader.close(0)
    other.close(0)
    leader.close(0)


def test_the_first_host_numbers_the_attempts(port: int) -> None:
    monitors = connected(port, 3)
    leader, *others = monitors
    leader.announce_next_attempt(1)
    wait_until(lambda: all(other.error for other in others))
    assert not any(other.is_final for other in others)
    for other in others:
        other.announce_next_attempt(7)
    assert begin(monitors, [1, 7, 7]) == [1, 1, 1]
    assert [outcome(monitor) for monitor in monitors] == [(None, None, False)] * 3


def test_the_attempt_of_one_host_fails(port: int) -> None:
    """The host may join the next attempt before the other hosts have ended this attempt."""
    leader, failed, other = connected(port, 3)
    failed.announce_next_attempt(1)
    with ThreadPoolExecutor() as pool:
        early = pool.submit(failed.begin_attempt, 1, 10)
        wait_until(lambda: leader.error is not None)
        assert outcome(leader) == (LOST, None, False)
        leader.announce_next_attempt(1)
        wait_until(lambda: other.error is not None)
        other.announce_next_attempt(1)
        assert begin([leader, other], [1, 1]) == [1, 1]
        assert early.result(10) == 1
    assert [outcome(monitor) for monitor in (leader, failed, other)] == [(None, None, False)] * 3


@pytest.mark.parametrize("noticed", [True, False])
def test_a_command_that_was_killed_is_started_again(port: int, noticed: bool) -> None:
    """The command may start again before its end is noticed, for example after its whole host crashes."""
    leader, killed = connected(port, 2)
    if noticed:
        killed._connected[0].connection.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: leader.error is not None)
    returned = PeerMonitor(HostGroup(HOSTS[:2], 1, port), PROCESSES, Transfer())
    with ThreadPoolExecutor() as pool:
        number = pool.submit(returned.begin_attempt, 0, 10)
        wait_until(lambda: leader.error is not None)
        leader.announce_next_attempt(1)
        assert leader.begin_attempt(1, 10) == 1
        assert number.result(10) == 1


def test_the_first_host_is_started_again(port: int) -> None:
    """The command of the first host counts attempts from 0 again, and the other hosts adopt its count."""
    leader, other = connected(port, 2)
    other._connected[0].connection.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: other.error is not None)
    assert not other.is_final
    other.announce_next_attempt(1)
    leader.announce_next_attempt(0)
    with ThreadPoolExecutor() as pool:
        number = pool.submit(other.begin_attempt, 1, 10)
        wait_until(lambda: 1 in leader._joined)
        first = leader._joined[1]
        first.connection.shutdown(socket.SHUT_RDWR)  # the connection of the other host breaks once more
        wait_until(lambda: leader._joined.get(1) not in (None, first))
        assert leader.begin_attempt(0, 10) == 0
        assert number.result(10) == 0


@pytest.mark.parametrize(("node", "absent"), [(0, "127.0.0.1, 127.0.0.1"), (1, "127.0.0.1")])
def test_who_does_not_arrive_is_named(port: int, node: int, absent: str) -> None:
    monitor = PeerMonitor(HostGroup(HOSTS, node, port), PROCESSES, Transfer())
    with pytest.raises(
        PeerTimeout, match=f"^cluster.timeout=0.3: the command on host {absent} did not arrive in time$"
    ):
        monitor.begin_attempt(0, 0.3)


@pytest.mark.parametrize("exit_code", [0, 1, 143])
def test_the_run_ends_while_a_host_waits_for_the_next_attempt(port: int, exit_code: int) -> None:
    leader, other = connected(port, 2)
    other.announce_next_attempt(1)
    with ThreadPoolExecutor() as pool:
        number = pool.submit(other.begin_attempt, 1, 10)
        wait_until(lambda: 1 in leader._joined)
        leader.close(exit_code)
        number.result(10)
    assert other._transfer.followed == 1, "a host must not look for a checkpoint if no attempt begins"  # type: ignore[attr-defined]
    assert outcome(other) == (LOST if exit_code == 1 else None, None if exit_code == 1 else exit_code, True)


def test_a_host_is_interrupted_while_all_wait_for_another(port: int) -> None:
    leader, interrupted, _ = connected(port, 3)
    leader.announce_next_attempt(1)
    wait_until(lambda: interrupted.error is not None)
    interrupted.announce_next_attempt(1)
    with ThreadPoolExecutor() as pool:
        pool.submit(interrupted.begin_attempt, 1, 10)
        number = pool.submit(leader.begin_attempt, 1, 10)
        wait_until(lambda: 1 in leader._joined)
        interrupted.close(143)
        assert number.result(5) == 1
        wait_until(lambda: 1 in leader._joined)  # the thread outlives `close` here; in a run it ends with its process
        leader.close(143)
    assert leader.stop_signal == signal.SIGTERM


def test_all_hosts_know_the_token_of_the_run(port: int) -> None:
    leader, other, third = connected(port, 3)
    assert leader.token == other.token == third.token


def test_what_is_no_message_is_ignored(port: int) -> None:
    leader, other = connected(port, 2)
    for text in (b"GET / HTTP/1.1\r\n", b'{"join": 9}\n', b'{"join": "x"}\n', b"\xff\n", b"a" * 5000):
        with socket.create_connection(leader._leader_address) as stranger:
            stranger.sendall(text)
            assert stranger.recv(1) == b""
    assert outcome(leader) == outcome(other) == (None, None, False)


def test_silent_connections_are_bounded_and_end(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_monitor, "MAX_UNAUTHENTICATED", 1)
    monkeypatch.setattr(peer_monitor, "HELLO_SECONDS", 0.1)
    leader = PeerMonitor(HostGroup(HOSTS[:2], 0, port), PROCESSES, Transfer())
    threads = threading.active_count()
    strangers = [socket.create_connection(leader._leader_address, 10) for _ in range(10)]
    wait_until(lambda: threading.active_count() <= threads + 1)
    assert [stranger.recv(1) for stranger in strangers] == [b""] * 10
    other = PeerMonitor(HostGroup(HOSTS[:2], 1, port), PROCESSES, Transfer())
    assert begin([leader, other], [0, 0]) == [0, 0]


def test_strangers_do_not_keep_a_host_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those who stay silent nor those who join as a host and stay connected."""
    monkeypatch.setattr(peer_monitor, "MAX_UNAUTHENTICATED", 2)
    monkeypatch.setattr(peer_monitor, "HELLO_SECONDS", 60)
    leader = PeerMonitor(HostGroup(HOSTS[:2], 0, port), PROCESSES, Transfer())
    threads = threading.active_count()
    silent = [socket.create_connection(leader._leader_address, 10) for _ in range(5)]
    assert [stranger.recv(1) for stranger in silent[:3]] == [b""] * 3
    for _ in range(20):
        silent.append(socket.create_connection(leader._leader_address, 10))
        silent[-1].sendall(b'{"join": 1}\n')
    wait_until(lambda: threading.active_count() <= threads + 2)
    other = PeerMonitor(HostGroup(HOSTS[:2], 1, port), PROCESSES, Transfer())
    assert begin([leader, other], [0, 0]) == [0, 0]


# The checkpoint that an attempt starts from

BIG = bytes(3 << 20)  # more bytes than the buffers of the sockets hold


def with_transfers(port: int, *transfers: Transfer) -> list[PeerMonitor]:
    hosts = (HOSTS[0],) * len(transfers)
    return [PeerMonitor(HostGroup(hosts, node, port), PROCESSES, each) for node, each in enumerate(transfers)]


def ask(port: int, fingerprint: object) -> bytes:
    """Ask the first host's command for a checkpoint. Return the bytes that it sends."""
    with socket.create_connection((HOSTS[0], port + PROCESSES), 10) as stranger, stranger.makefile("rb") as stream:
        stranger.sendall(json.dumps({"fetch": fingerprint}).encode() + b"\n")
        return stream.read()


def test_the_checkpoint_is_handed_to_the_hosts_that_lack_it(port: int) -> None:
    """Several hosts receive it at once. The next attempt has a newer checkpoint."""
    transfers = [Transfer(BIG), Transfer(), Transfer(own=BIG), Transfer(own=b"stale")]
    monitors = with_transfers(port, *transfers)
    assert begin(monitors, [0] * 4) == [0] * 4
    assert all(each.own == BIG for each in transfers[1:])
    monitors[0].announce_next_attempt(1)
    wait_until(lambda: all(other.error for other in monitors[1:]))
    for other in monitors[1:]:
        other.announce_next_attempt(1)
    transfers[0].content = b"newer"
    assert begin(monitors, [1] * 4) == [1] * 4
    assert all(each.own == b"newer" for each in transfers[1:])


def test_the_first_host_starts_from_the_initial_weights(port: int) -> None:
    transfers = [Transfer(), Transfer(own=b"stale")]
    assert begin(with_transfers(port, *transfers), [0, 0]) == [0, 0]
    assert transfers[1].own is None


def test_nothing_but_the_checkpoint_of_this_attempt_can_be_fetched(port: int) -> None:
    leader, other = with_transfers(port, Transfer(b"content"), Transfer(own=b"content"))
    with ThreadPoolExecutor() as pool:
        began = pool.submit(leader.begin_attempt, 0, 10)
        wait_until(lambda: leader._offer)
        assert ask(port, "7") == b"content"
        assert [ask(port, wrong) for wrong in ("8", "", "/etc/passwd", "../step-00000001", None, 7, ["7"])] == [b""] * 7
        assert other.begin_attempt(0, 10) == began.result() == 0
    assert ask(port, "7") == b""
    assert outcome(leader) == outcome(other) == (None, None, False)


class Once(Transfer):
    """A transfer that breaks the first time."""

    def receive(self, fetch: Callable[[str], BinaryIO], fingerprint: str) -> bytes:
        if self.own is None:
            self.own = b""
            with fetch(fingerprint) as stream:
                stream.read(5)
            raise BrokenTransferError("the connection was closed")
        return super().receive(fetch, fingerprint)


def test_a_transfer_that_breaks_is_tried_again(port: int, caplog: pytest.LogCaptureFixture) -> None:
    transfers = [Transfer(BIG), Once()]
    assert begin(with_transfers(port, *transfers), [0, 0]) == [0, 0]
    assert transfers[1].own == BIG
    assert "the checkpoint cannot be received from host 127.0.0.1 (the connection was closed); trying ag" in caplog.text


class Never(Transfer):
    """A transfer whose content never matches the offer."""

    def receive(self, fetch: Callable[[str], BinaryIO], fingerprint: str) -> bytes:
        raise BrokenTransferError("model.safetensors does not match its checksum")


@pytest.mark.slow
def test_no_transfer_succeeds(port: int) -> None:
    leader, other = with_transfers(port, Transfer(b"content"), Never())
    with ThreadPoolExecutor() as pool:
        began = pool.submit(leader.begin_attempt, 0, 1)
        expected = r"^cluster.timeout=1: the checkpoint cannot be received from host 127.0.0.1 \(model.safetensors "
        with pytest.raises(PeerTimeout, match=expected):
            other.begin_attempt(0, 1)
        absent = "^cluster.timeout=1: the command on host 127.0.0.1 did not (arrive|receive and verify the checkpoint)"
        with pytest.raises(PeerTimeout, match=absent):
            began.result()


class Slow(Transfer):
    """A transfer that takes longer than the timeout."""

    def read_chunks(self) -> Iterator[bytes]:
        assert self.content is not None
        for number in range(4):
            time.sleep(0.5)
            yield self.content[number::4]


@pytest.mark.slow
def test_the_timeout_does_not_count_while_a_checkpoint_is_sent(port: int) -> None:
    transfers = [Slow(b"aaaa"), Transfer()]
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda monitor: monitor.begin_attempt(0, 1), with_transfers(port, *transfers))) == [0, 0]
    assert transfers[1].own == b"aaaa"


class Full(Transfer):
    """A transfer to a host whose disk is full."""

    def receive(self, fetch: Callable[[str], BinaryIO], fingerprint: str) -> bytes:
        raise UserError("no space")


def test_a_host_without_space_ends_the_run(port: int) -> None:
    leader, other = with_transfers(port, Transfer(b"content"), Full())
    with ThreadPoolExecutor() as pool:
        began = pool.submit(leader.begin_attempt, 0, 10)
        with pytest.raises(UserError, match=r"^no space$"):
            other.begin_attempt(0, 10)
        other.close(2)
        began.result(5)
    assert outcome(leader) == (LOST, None, True)


def test_a_host_is_lost_while_it_receives(port: int) -> None:
    """The lost host starts again and receives the checkpoint from the beginning. The first host waits for it."""
    leader, _ = monitors = with_transfers(port, Transfer(BIG), Transfer())
    with ThreadPoolExecutor() as pool:
        began = pool.submit(leader.begin_attempt, 0, 10)
        lost = monitors[1]._connect(None)
        lost.send({"join": 1})
        wait_until(lambda: 1 in leader._joined)
        half = socket.create_connection(leader._leader_address)
        half.sendall(json.dumps({"fetch": str(len(BIG))}).encode() + b"\n")
        assert half.recv(5)
        lost.connection.close()
        half.close()
        wait_until(lambda: 1 not in leader._joined)
        assert not began.done()
        assert monitors[1].begin_attempt(0, 10) == began.result() == 0
    assert monitors[1]._transfer.own == BIG  # type: ignore[attr-defined]
