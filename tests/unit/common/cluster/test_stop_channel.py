import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread

import pytest

from common.cluster import stop_server, token_listener
from common.cluster.stop_decision import StopDecision
from common.cluster.stop_member import StopMember
from common.cluster.stop_server import StopServer
from common.errors import Interrupted
from common.training.stop import SAVE, SIGNALS, Stop

HANG_SECONDS = 30.0
TERM = signal.SIGTERM

End = StopServer | StopMember
Connect = Callable[[StopServer], socket.socket]
MakeRanks = Callable[[int], list[tuple[End, Stop]]]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no thread raises, and restore all signal handlers afterwards."""
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)
    assert not raised


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def server(stack: ExitStack) -> StopServer:
    return stack.enter_context(closing(StopServer("127.0.0.1")))


@pytest.fixture
def make_ranks(server: StopServer, stack: ExitStack) -> MakeRanks:
    """Return a function that makes ranks, each with a `Stop`. The first rank is the chief."""

    def make(count: int) -> list[tuple[End, Stop]]:
        members = [stack.enter_context(closing(StopMember(server.address, f"rank {n}"))) for n in range(1, count)]
        ends: list[End] = [server, *members]
        ranks = [(end, Stop()) for end in ends]
        for end, stop in ranks:
            end.attach(stop)
        return ranks

    return make


@pytest.fixture
def connect(stack: ExitStack) -> Connect:
    """Return a function that connects without a `StopMember` and sends the hello message."""

    def connect(server: StopServer) -> socket.socket:
        host, port, token = server.address
        connection = stack.enter_context(socket.create_connection((host, port), HANG_SECONDS))
        connection.sendall(json.dumps({"hello": token, "name": "bare"}).encode() + b"\n")
        assert json.loads(connection.recv(4096)) == {"welcome": True}
        return connection

    return connect


def train(stop: Stop, barrier: Barrier, seconds: float, trace: list[str]) -> None:
    """Run the loop of a rank: steps, checks, a gathered state, evaluations. Every collective is a barrier."""

    def collective(name: str) -> None:
        trace.append(name)
        barrier.wait(HANG_SECONDS)
        time.sleep(seconds)

    try:
        for block in range(100_000):
            for batch in stop.yield_until_stop(range(3)):
                collective(f"step {block}.{batch}")
            stop.check()
            collective("state")
            for batch in stop.yield_or_interrupt(range(2)):
                collective(f"evaluation {block}.{batch}")
            collective("sums")
            if stop.saving:
                stop.saving = False
                collective("checkpoint")
    except Interrupted as interruption:
        collective(f"last state {interruption}")
    except BrokenBarrierError:
        trace.append("hung")


def run_together(
    stops: list[Stop], request: Callable[[], None], randomness: random.Random, first_trace: list[str] | None = None
) -> list[list[str]]:
    """Run all ranks until they end. Return the trace of each rank. A request may read `first_trace` meanwhile."""
    barrier = Barrier(len(stops))
    traces: list[list[str]] = [[] for _ in stops]
    if first_trace is not None:
        traces[0] = first_trace
    threads = [
        Thread(target=train, args=(stop, barrier, randomness.random() * 0.002, trace))
        for stop, trace in zip(stops, traces, strict=True)
    ]
    for thread in threads:
        thread.start()
    request()
    for thread in threads:
        thread.join(2 * HANG_SECONDS)
        assert not thread.is_alive()
    return traces


@pytest.mark.parametrize("trial", range(50))
def test_all_ranks_leave_after_the_same_unit(make_ranks: MakeRanks, trial: int) -> None:
    randomness = random.Random(trial)
    stops = [stop for _, stop in make_ranks(randomness.randint(2, 4))]
    asked = randomness.sample(stops, randomness.randint(1, len(stops)))
    spread = randomness.choice([0.0, 0.0, 0.001, 0.01, 0.05, 0.3])
    delays = sorted(randomness.random() * spread for _ in asked)

    def request() -> None:
        time.sleep(randomness.random() * 0.03)
        start = time.monotonic()
        for stop, delay in zip(asked, delays, strict=True):
            time.sleep(max(0.0, start + delay - time.monotonic()))
            stop.request(randomness.choice(SIGNALS))

    traces = run_together(stops, request, randomness)
    assert "hung" not in traces[0]
    assert all(trace == traces[0] for trace in traces)
    assert traces[0][-1].startswith("last state stopped by SIG")
    assert len({stop.signum for stop in stops}) == 1


@pytest.mark.parametrize("trial", range(50))
def test_all_ranks_save_after_the_same_unit(make_ranks: MakeRanks, trial: int) -> None:
    """Requests arrive at random times, one by one or at once. The last requests coincide with a stop."""
    randomness = random.Random(trial)
    stops = [stop for _, stop in make_ranks(randomness.randint(2, 4))]
    requests = [randomness.choice([0.0, 0.0, 0.001, 0.01, 0.05]) for _ in range(randomness.randint(1, 6))]

    def request() -> None:
        for delay in requests:
            time.sleep(delay)
            stops[0].save()
        time.sleep(randomness.choice([0.0, 0.001, 0.1]))
        randomness.choice(stops).request(TERM)

    traces = run_together(stops, request, randomness)
    assert "hung" not in traces[0]
    assert all(trace == traces[0] for trace in traces)
    assert traces[0].count("checkpoint") <= len(requests)
    assert traces[0][-1] == "last state stopped by SIGTERM"


@pytest.mark.slow
def test_a_checkpoint_is_saved_at_once_and_the_ranks_continue(make_ranks: MakeRanks) -> None:
    stops = [stop for _, stop in make_ranks(3)]

    trace: list[str] = []

    def has_saved(count: int) -> bool:
        return trace.count("checkpoint") == count

    def request() -> None:
        for count in range(1, 4):
            stops[0].save()
            wait_until(partial(has_saved, count))
        stops[1].request(TERM)

    traces = run_together(stops, request, random.Random(0), trace)
    assert traces[0] == traces[1] == traces[2]
    assert traces[0].count("checkpoint") == 3


def test_a_checkpoint_waits_for_a_silent_member_but_a_stop_does_not(
    make_ranks: MakeRanks, connect: Connect, server: StopServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow member may have begun a unit that no other rank has begun."""
    monkeypatch.setattr(stop_server, "ANSWER_SECONDS", 0.05)
    silent = connect(server)
    stops = [stop for _, stop in make_ranks(2)]

    def request() -> None:
        stops[0].save()
        assert json.loads(silent.recv(4096)) == {"freeze": SAVE}
        wait_until(lambda: all(stop._frozen for stop in stops))
        time.sleep(0.3)  # longer than a stop waits
        stops[1].request(TERM)

    traces = run_together(stops, request, random.Random(0))
    assert traces[0] == traces[1]
    assert "checkpoint" not in traces[0] and traces[0][-1] == "last state stopped by SIGTERM"


def test_a_checkpoint_and_a_member_that_dies(make_ranks: MakeRanks, connect: Connect, server: StopServer) -> None:
    """No rank waits for the dead member. After the chief closes the channel, no rank waits for a decision."""
    dying = connect(server)
    (_, chief), (_, other) = make_ranks(2)
    chief.save()
    assert json.loads(dying.recv(4096)) == {"freeze": SAVE}
    dying.close()
    assert (
        [list(stop.yield_until_stop(range(3))) for stop in (chief, other)] == [[], []] and chief.saving and other.saving
    )
    chief.saving = other.saving = False
    connect(server)  # this member never answers
    chief.save()
    wait_until(lambda: other._frozen)
    server.close()
    assert list(other.yield_until_stop(range(3))) == [0, 1, 2] and not other.saving


def test_ranks_that_run_ahead_of_each_other(make_ranks: MakeRanks) -> None:
    """A host does not wait for its GPU, so hosts may be many units apart."""
    stops = [stop for _, stop in make_ranks(3)]
    begun = [0, 0, 0]

    def count(rank: int) -> None:
        for _ in stops[rank].yield_until_stop(iter(int, 1)):
            begun[rank] += 1
            time.sleep(0.001 * (1 + rank))

    threads = [Thread(target=count, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: min(begun) > 10)
    stops[2].request(TERM)
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert begun[0] == begun[1] == begun[2] > 10


def test_a_request_before_the_channel_is_connected(server: StopServer, stack: ExitStack) -> None:
    member = stack.enter_context(closing(StopMember(server.address, "rank 1")))
    stops = [Stop(), Stop()]
    stops[1].request(signal.SIGHUP)
    server.attach(stops[0])
    member.attach(stops[1])
    traces = run_together(stops, lambda: None, random.Random(0))
    assert traces[0] == traces[1]
    assert traces[0][-1] == "last state stopped by SIGHUP"


def test_signals_reach_the_channel_from_the_main_thread(make_ranks: MakeRanks) -> None:
    (_, chief), (_, other) = make_ranks(2)  # the last `Stop` has the signal handlers
    threading.Timer(0.05, os.kill, (os.getpid(), TERM)).start()
    units = [stop.yield_until_stop(iter(int, 1)) for stop in (chief, other)]
    while all(next(unit, None) is not None for unit in units):
        time.sleep(0.001)
    assert next(units[1], None) is None
    assert chief.signum == other.signum == TERM
    assert chief._begun_units == other._begun_units > 0


def test_a_member_that_never_answers(
    make_ranks: MakeRanks,
    connect: Connect,
    server: StopServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(stop_server, "ANSWER_SECONDS", 0.2)
    connect(server)
    stops = [stop for _, stop in make_ranks(3)]
    start = time.monotonic()
    traces = run_together(stops, lambda: stops[1].request(TERM), random.Random(0))
    assert time.monotonic() - start >= 0.2
    assert traces[0] == traces[1] == traces[2]
    wait_until(lambda: "without an answer from bare" in caplog.text)  # logged after the server informs the others


@pytest.mark.parametrize("reset", [False, True])
def test_a_member_that_dies(
    make_ranks: MakeRanks, connect: Connect, server: StopServer, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    """No rank waits for a member that dies before the question or instead of an answer."""
    monkeypatch.setattr(stop_server, "ANSWER_SECONDS", 600)
    early, late = connect(server), connect(server)
    stops = [stop for _, stop in make_ranks(2)]
    if reset:
        early.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    early.close()

    def request() -> None:
        stops[1].request(TERM)
        assert json.loads(late.recv(4096)) == {"freeze": TERM}
        if reset:
            late.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        late.close()

    traces = run_together(stops, request, random.Random(0))
    assert traces[0] == traces[1]


JUNK = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xfe\n",
    b"[" * 4000 + b"\n",
    b"x" * 20_000,
    b"1\n",
    b"{}\n",
    b'{"hello": 1}\n',
    '{"hello": "\\ud800ü"}\n'.encode(),
    b'{"request": 15}\n',
    b"",
]


def test_junk_connections(make_ranks: MakeRanks, server: StopServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_listener, "HELLO_SECONDS", 0.2)
    stops = [stop for _, stop in make_ranks(2)]
    with ExitStack() as stack:
        for junk in JUNK:
            connection = stack.enter_context(socket.create_connection(server.address[:2], HANG_SECONDS))
            with suppress(ConnectionError):  # the server may close the connection before all bytes are sent
                connection.sendall(junk)
                assert connection.recv(1) == b""
    assert stops[0].signum is None
    traces = run_together(stops, lambda: stops[1].request(TERM), random.Random(0))
    assert traces[0] == traces[1]


def test_a_member_that_sends_junk_is_dropped(make_ranks: MakeRanks, server: StopServer, connect: Connect) -> None:
    for junk in (b'{"request": 9}\n', b'{"begun": 10}\n', b'{"begun": "x"}\n', b"{}\n"):
        connection = connect(server)
        connection.sendall(junk)
        assert connection.recv(1) == b""
    make_ranks(2)


def test_another_token_is_refused(server: StopServer) -> None:
    host, port, _ = server.address
    with pytest.raises(OSError):
        StopMember((host, port, "another"), "rank 1")


def test_no_chief_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = ("127.0.0.1", listener.getsockname()[1], "token")
        with pytest.raises(TimeoutError):
            StopMember(address, "rank 1", timeout=0.1)
    with pytest.raises(ConnectionRefusedError):
        StopMember(address, "rank 1")


def test_a_late_member_learns_the_decision(make_ranks: MakeRanks, server: StopServer, stack: ExitStack) -> None:
    stops = [stop for _, stop in make_ranks(2)]
    traces = run_together(stops, lambda: stops[0].request(TERM), random.Random(0))
    late = stack.enter_context(closing(StopMember(json.loads(json.dumps(server.address)), "worker 0")))
    stop = Stop()
    late.attach(stop)
    wait_until(lambda: stop.signum is not None)
    assert sum(1 for _ in stop.yield_until_stop(iter(int, 1))) == stops[0]._last_unit
    assert traces[0] == traces[1]


def test_a_late_member_joins_the_agreement(
    make_ranks: MakeRanks, server: StopServer, connect: Connect, stack: ExitStack
) -> None:
    silent = connect(server)
    ((_, chief),) = make_ranks(1)
    server.request(TERM)
    assert json.loads(silent.recv(4096)) == {"freeze": TERM}
    late = LateMember(server, stack)
    assert next(late) == {"welcome": True} and next(late) == {"freeze": TERM}
    assert chief._last_unit is None
    late.send(b'{"begun": 7}\n')
    silent.sendall(b'{"begun": 3}\n')
    assert json.loads(silent.recv(4096)) == next(late) == {"last": 7}
    assert sum(1 for _ in chief.yield_until_stop(iter(int, 1))) == 7


class LateMember:
    """A bare connection that sends its messages one by one."""

    def __init__(self, server: StopServer, stack: ExitStack) -> None:
        host, port, token = server.address
        self.connection = stack.enter_context(socket.create_connection((host, port), HANG_SECONDS))
        self.lines = self.connection.makefile("rb")
        self.send(json.dumps({"hello": token, "name": "late"}).encode() + b"\n")

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def __next__(self) -> object:
        return json.loads(self.lines.readline())


def test_a_stop_is_attached_after_the_decision(server: StopServer, stack: ExitStack) -> None:
    """A member without a `Stop` has begun no unit."""
    member = stack.enter_context(closing(StopMember(server.address, "rank 1")))
    member.request(TERM)
    wait_until(lambda: member._local_stop.last is not None)
    for end in (server, member):
        stop = Stop()
        end.attach(stop)
        with pytest.raises(Interrupted):
            stop.check()


def test_wait_until_the_chief_has_closed(server: StopServer, make_ranks: MakeRanks) -> None:
    (_, _), (member, stop) = make_ranks(2)
    assert isinstance(member, StopMember)
    assert not member.wait(0.05)
    threading.Timer(0.1, server.close).start()
    assert member.wait(HANG_SECONDS)
    assert stop.signum is None
    assert list(stop.yield_until_stop(range(3))) == [0, 1, 2]
    stop.request(TERM)  # no other rank is connected any more
    wait_until(lambda: stop.signum == TERM)
    with pytest.raises(Interrupted):
        stop.check()


def test_the_chief_dies_before_it_decides() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def welcome() -> None:
            connections.append(listener.accept()[0])
            connections[0].recv(4096)
            connections[0].sendall(b'{"welcome": true}\n{"freeze": 15}\n')

        Thread(target=welcome).start()
        member, stop = StopMember(("127.0.0.1", listener.getsockname()[1], ""), "rank 1"), Stop()
        member.attach(stop)
        wait_until(lambda: stop.signum == TERM)
        threading.Timer(0.05, connections[0].close).start()
        assert list(stop.yield_until_stop(range(3))) == []


def test_close_is_idempotent_and_decides_what_is_open(server: StopServer, connect: Connect) -> None:
    connection, stop = connect(server), Stop()
    server.attach(stop)
    stop.request(TERM)
    assert json.loads(connection.recv(4096)) == {"freeze": TERM}
    server.close()
    server.close()
    assert list(stop.yield_until_stop(range(3))) == []
    server.request(TERM)


def test_the_port_can_be_chosen_and_used_again(server: StopServer) -> None:
    StopMember(server.address, "rank 1")
    server.close()
    port = server.address[1]
    with closing(StopServer("localhost", port)) as again:
        assert again.address[:2] == ("localhost", port)
        assert again.address[2] != server.address[2]
        StopMember(again.address, "rank 1").close()


def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with closing(StopServer("::1")) as server, closing(StopMember(server.address, "rank 1")) as member:
        stop = Stop()
        server.attach(stop)
        member.request(TERM)
        wait_until(lambda: stop.signum == TERM)


def test_the_agreement_is_the_maximum_of_the_answers() -> None:
    """The order of answers, losses and late members does not matter. The decision falls once, after the last answer."""
    for seed in range(500):
        randomness = random.Random(seed)
        chief_units = randomness.randint(0, 5)
        begun = {member: randomness.randint(0, 5) for member in range(randomness.randint(0, 6))}
        agreement, counted = StopDecision(TERM, chief_units, begun), [chief_units]
        assert agreement.decide() == (not begun)
        if agreement.last is None:
            late = {member: randomness.randint(0, 5) for member in range(10, 10 + randomness.randint(0, 2))}
            agreement.awaited.update(late)
            begun |= late
        for member in randomness.sample(list(begun), len(begun)):
            if agreement.last is not None:
                agreement.record_answer(member, 100)  # this answer arrives too late
            elif randomness.random() < 0.2:
                agreement.awaited.discard(member)
            else:
                agreement.record_answer(member, begun[member])
                counted.append(begun[member])
            awaited, decided = set(agreement.awaited), agreement.last is not None
            at_once = randomness.random() < 0.05
            assert agreement.decide(at_once) == (not decided and (at_once or not awaited))
        assert agreement.last == max(counted)
        assert not agreement.decide(at_once=True)


RANK = """
import json, os, socket, sys, time
from common.cluster.stop_member import StopMember
from common.cluster.stop_server import StopServer
from common.errors import Interrupted
from common.training.stop import Stop

rank, port = int(sys.argv[1]), int(sys.argv[2])
stop = Stop()
if rank == 0:
    end = StopServer("127.0.0.1")
    print(json.dumps(end.address), flush=True)
else:
    end = StopMember(json.loads(sys.argv[3]), f"rank {rank}")
end.attach(stop)
group = socket.create_connection(("127.0.0.1", port))

def collective():  # blocks in C, as a collective does
    group.sendall(b".")
    if not group.recv(1):
        sys.exit("the group is broken")

units = 0
try:
    while True:
        for _ in stop.yield_until_stop(range(5)):
            collective()
            units += 1
        stop.check()
        for _ in stop.yield_or_interrupt(range(2)):
            collective()
            units += 1
except Interrupted as interruption:
    if rank == 0:
        time.sleep(float(sys.argv[3]))  # it saves a checkpoint
        end.close()
        saved = True
    else:
        saved = end.wait(10)
    print(json.dumps([units, str(interruption), saved]), flush=True)
    sys.stdin.read()  # a signal would end an interpreter that is already closing
    sys.exit(interruption.exit_code)
"""


def be_the_group(listener: socket.socket, size: int, complete: threading.Event) -> None:
    """Act as a collective of all ranks. Answer each rank after every rank has sent a byte."""
    with ExitStack() as stack, suppress(OSError):
        connections = [stack.enter_context(listener.accept()[0]) for _ in range(size)]
        complete.set()
        while all(connection.recv(1) for connection in connections):
            for connection in connections:
                connection.sendall(b".")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "saving"),
    [([[2]], 0.0), ([[0, 1, 2, 3]], 0.0), ([[0, 1], [2, 3]], 1.2), ([[2, 3], [0, 1]], 1.2)],
    ids=["one rank", "all at once", "first node 1 s earlier", "second node 1 s earlier"],
)
def test_processes_that_are_signalled(nodes: list[list[int]], saving: float, stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    complete = threading.Event()
    Thread(target=be_the_group, args=(listener, 4, complete), daemon=True).start()

    def start(rank: int, argument: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RANK, str(rank), str(listener.getsockname()[1]), argument]
        root = Path(__file__).parents[4]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=root)
        stack.callback(process.kill)
        return process

    chief = start(0, str(saving))
    assert chief.stdout is not None
    address = chief.stdout.readline()
    processes = [chief, *(start(rank, address) for rank in range(1, 4))]
    assert complete.wait(30)
    time.sleep(0.1)
    for number, node in enumerate(nodes):
        time.sleep(1.0 if number else 0.0)
        for rank in node:
            processes[rank].send_signal(TERM)
    outputs = [process.communicate(timeout=HANG_SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [128 + TERM] * 4
    assert [error for _, error in outputs] == [""] * 4
    units = {json.loads(output)[0] for output, _ in outputs}
    assert len(units) == 1 and units.pop() > 0
    assert all(json.loads(output)[1:] == ["stopped by SIGTERM", True] for output, _ in outputs)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
