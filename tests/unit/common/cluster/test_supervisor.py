"""Tests of the supervisor. Each supervisor runs in a separate process, because signals go to whole processes."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import psutil
import pytest

from common.cluster import supervisor
from common.cluster.supervisor import Process, _ProcessGroup
from tests.conftest import Python, StartPython, wait_until

STRAGGLER_SECONDS = 1.5  # a run waits longer than these tests

SUPERVISOR = """
import json, os, sys, time
from pathlib import Path
from common.cluster import supervisor
from common.cluster.supervisor import Process, supervise

supervisor.MIN_LIFETIME_SECONDS, supervisor.SUSPENSION_POLL_SECONDS, supervisor.STRAGGLER_SECONDS = 1.0, 0.1, STRAGGLER
supervisor.GRACE_SECONDS = float(os.environ.get("GRACE", supervisor.GRACE_SECONDS))
restartable = json.loads(os.environ.get("RESTARTABLE", "[]"))
processes = [
    Process(f"rank {rank}", [sys.executable, "-c", code, str(rank)], {"MARK": str(rank)}, False, rank in restartable)
    for rank, code in enumerate(sys.argv[2:])
]
start = time.monotonic()
started = lambda pids: (Path(sys.argv[1]) / "pids").write_text(json.dumps(pids))
patience = float(os.environ.get("PATIENCE", "inf"))
outcome = supervise(processes, Path(sys.argv[1]) / "log", on_started=started, max_suspended_seconds=patience)
print(json.dumps([outcome.exit_code, outcome.problem, time.monotonic() - start]))
""".replace("STRAGGLER\n", f"{STRAGGLER_SECONDS}\n")
CHILD = """
import os, signal, subprocess, sys, time
from pathlib import Path
from common.cluster.processes import die_with_parent

def ready():
    Path(DIRECTORY, f"{os.environ['MARK']}-{os.getpid()}").touch()

"""
SLEEP = "ready(); time.sleep(60)"
OBEY = """
from common.training.stop import Stop
stop = Stop()
ready()
while stop.signum is None:
    time.sleep(0.01)
sys.exit(7)
"""
UNTIL_ENOUGH = "ready()\nwhile not Path(DIRECTORY, 'enough').exists(): time.sleep(0.05)"
IGNORE = "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]; " + SLEEP
FAMILY = (
    """
die_with_parent()
sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
subprocess.Popen(sleeper, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""
    + SLEEP
)


AFTER_THE_CHIEF = """
while not list(Path(DIRECTORY).glob("0-*")):
    time.sleep(0.01)
"""


class Group:
    """A group of processes that run the given code, and their supervisor."""

    def __init__(self, start: StartPython, directory: Path) -> None:
        self.start, self.directory = start, directory

    def __call__(self, *codes: str) -> subprocess.Popen[str]:
        directory = repr(str(self.directory))
        return self.start(
            SUPERVISOR, self.directory, *((CHILD + code).replace("DIRECTORY", directory) for code in codes)
        )

    def pids(self, count: int) -> list[int]:
        """Wait until all members are ready. Return their process ids in order."""
        wait_until(lambda: len(list(self.directory.glob("*-*"))) == count)
        return [int(path.name.split("-")[1]) for path in sorted(self.directory.glob("*-*"))]

    def outcome(self, supervisor: subprocess.Popen[str]) -> tuple[int, str | None, float]:
        """Return the exit code and the problem of the outcome, and its duration in seconds."""
        out, err = supervisor.communicate(timeout=40)
        assert supervisor.returncode == 0, err
        exit_code, problem, seconds = json.loads(out.splitlines()[-1])
        return exit_code, problem, seconds


@pytest.fixture
def group(start_python: StartPython, tmp_path: Path) -> Iterator[Group]:
    group = Group(start_python, tmp_path)
    yield group
    for path in tmp_path.glob("*-*"):
        pid = int(path.name.split("-")[1])
        if alive(pid) and psutil.Process(pid).environ().get("MARK") == path.name.split("-")[0]:
            os.killpg(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Check whether the process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codes", "exit_code", "problem"),
    [
        ([""], 0, None),
        (["sys.exit(3)"], 1, "rank 0 ended with exit code 3"),
        (["os.kill(os.getpid(), signal.SIGKILL)"], 1, "rank 0 ended with signal SIGKILL"),
        (["", "", ""], 0, None),
        ([SLEEP, "sys.exit(3)", SLEEP], 1, "rank 1 ended with exit code 3"),
        ([SLEEP, "os.kill(os.getpid(), signal.SIGSEGV)"], 1, "rank 1 ended with signal SIGSEGV"),
        ([SLEEP, "sys.exit(2)"], 2, "rank 1 ended with exit code 2"),
        (["sys.exit(4)", SLEEP], 1, "rank 0 ended with exit code 4"),
        (["ready(); time.sleep(0.5)", AFTER_THE_CHIEF + "os.abort()"], 0, None),  # the chief completed without it
    ],
)
def test_outcomes(group: Group, codes: list[str], exit_code: int, problem: str | None) -> None:
    supervisor = group(*codes)
    assert group.outcome(supervisor)[:2] == (exit_code, problem)
    sleeping = [path for path in group.directory.glob("*-*") if alive(int(path.name.split("-")[1]))]
    assert not sleeping, "the end of one process must end the others"


@pytest.mark.slow
def test_the_end_of_the_chief_ends_the_others(group: Group) -> None:
    """The others have a few seconds to end by themselves."""
    supervisor = group("while not list(Path(DIRECTORY).glob('1-*')): time.sleep(0.01)", SLEEP)
    (pid,) = group.pids(1)
    exit_code, problem, seconds = group.outcome(supervisor)
    assert (exit_code, problem) == (0, None)
    assert seconds >= STRAGGLER_SECONDS
    assert not alive(pid)


def test_output(group: Group) -> None:
    say = "print('hello from', sys.argv[1], os.environ['MARK']); print('and this', file=sys.stderr)"
    supervisor = group(say, say)
    out, err = supervisor.communicate(timeout=30)
    assert out.splitlines()[0] == "hello from 0 0", "the chief must write to the output of the supervisor"
    assert err == "and this\n"
    assert sorted((group.directory / "log").read_text().splitlines()) == ["and this", "hello from 1 1"]


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_to_the_chief(group: Group, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals) -> None:
    """The supervisor ends the others after the chief, although they ignore signals. It does not wait for them."""
    monkeypatch.setenv("GRACE", "inf")
    supervisor = group(OBEY, IGNORE)
    pids = group.pids(2)
    supervisor.send_signal(signum)
    exit_code, problem, _ = group.outcome(supervisor)
    assert (exit_code, problem) == (128 + signum, f"stopped by {signum.name}")
    assert not any(map(alive, pids))


def test_an_interrupted_process_has_not_crashed(tmp_path: Path) -> None:
    """It may end after `watch` has looked for interrupted processes, and before it looks for crashed ones."""
    codes = ["import time; time.sleep(60)", f"raise SystemExit({128 + signal.SIGTERM})"]
    processes = [Process(f"rank {rank}", [sys.executable, "-c", code]) for rank, code in enumerate(codes)]
    with (tmp_path / "log").open("wb") as output:
        group = _ProcessGroup(processes, output, output, lambda pids: None, math.inf)
        try:
            group.start()
            group.children[1].wait(timeout=30)
            assert group._handle_crashes() is None
            assert group._forward_interruption() == signal.SIGTERM
        finally:
            group.kill()


@pytest.mark.slow
def test_a_chief_that_ignores_the_signal(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRACE", "2")
    supervisor = group(IGNORE, IGNORE)
    pids = group.pids(2)
    supervisor.send_signal(signal.SIGTERM)
    exit_code, _, _ = group.outcome(supervisor)
    assert exit_code == 128 + signal.SIGTERM
    assert not any(map(alive, pids))


def test_no_child_survives_a_killed_parent(group: Group) -> None:
    supervisor = group(FAMILY, FAMILY, FAMILY)
    pids = group.pids(3)
    families = [psutil.Process(pid).children() for pid in pids]
    assert [len(family) for family in families] == [1, 1, 1]
    everyone = [*pids, *(child.pid for family in families for child in family)]
    assert all(map(alive, everyone))
    supervisor.kill()
    try:
        wait_until(lambda: not any(map(alive, everyone)), seconds=5)
    finally:
        for pid in filter(alive, everyone):
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_cannot_be_started_ends_those_that_were(python: Python, tmp_path: Path) -> None:
    code = (
        "import sys, psutil; from pathlib import Path; from common.cluster.supervisor import Process, supervise\n"
        "sleeper = Process('a', [sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "try:\n"
        "    supervise([sleeper, Process('b', ['/not/there'])], Path(sys.argv[1]))\n"
        "except FileNotFoundError:\n"
        "    print(psutil.Process().children())\n"
    )
    assert python(code, tmp_path / "log") == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_stopped_counts_as_crashed(group: Group, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setenv("PATIENCE", "1.5")
    supervisor = group(SLEEP, SLEEP)
    pids = group.pids(2)
    os.kill(pids[rank], signal.SIGSTOP)
    exit_code, problem, _ = group.outcome(supervisor)
    assert (exit_code, problem) == (1, f"rank {rank} has been stopped for 1.5 s")
    assert not any(map(alive, pids))


def test_a_chief_that_fails_while_another_is_stopped(group: Group) -> None:
    supervisor = group(UNTIL_ENOUGH + "\nsys.exit(3)", SLEEP)
    os.kill(group.pids(2)[1], signal.SIGSTOP)
    (group.directory / "enough").touch()
    assert group.outcome(supervisor)[:2] == (1, "rank 1 has been stopped")


def test_a_process_that_is_stopped_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pause is shorter than the supervisor allows, and all together are longer."""
    pauses = [True, True, True, False] * 3
    stopped, seconds = iter([*pauses, True, True, True, True]), iter(range(100, 200))
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(supervisor, "_is_suspended", lambda _: next(stopped))
    group = _ProcessGroup([], None, MagicMock(), lambda pids: None, max_suspended_seconds=2)
    group.children = [MagicMock(pid=1)]
    assert [group._find_suspended() for _ in pauses] == [[]] * len(pauses)
    assert [group._find_suspended() for _ in range(4)] == [[], [], [], [0]]


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_started_again(group: Group, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals) -> None:
    monkeypatch.setenv("RESTARTABLE", "[1]")
    monkeypatch.setenv("PATIENCE", "0.5")
    supervisor = group(UNTIL_ENOUGH, SLEEP)
    _, pid = group.pids(2)
    time.sleep(1.2)
    os.kill(pid, signum)
    wait_until(lambda: len(list(group.directory.glob("1-*"))) == 2)
    assert not alive(pid)
    wait_until(lambda: json.loads((group.directory / "pids").read_text())["rank 1"] != pid)
    assert alive(json.loads((group.directory / "pids").read_text())["rank 1"])
    (group.directory / "enough").touch()
    assert group.outcome(supervisor)[:2] == (0, None)


@pytest.mark.slow
def test_a_first_process_that_is_started_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process of a host that has only workers is restarted."""
    monkeypatch.setenv("RESTARTABLE", "[0]")
    supervisor = group(UNTIL_ENOUGH)
    (pid,) = group.pids(1)
    time.sleep(1.2)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(list(group.directory.glob("0-*"))) == 2)
    (group.directory / "enough").touch()
    assert group.outcome(supervisor)[:2] == (0, None)


@pytest.mark.slow
def test_a_first_process_is_not_started_again_after_a_signal(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESTARTABLE", "[0]")
    supervisor = group(OBEY)
    group.pids(1)
    time.sleep(1.2)
    supervisor.send_signal(signal.SIGTERM)
    exit_code, _, _ = group.outcome(supervisor)
    assert exit_code == 143 and len(list(group.directory.glob("0-*"))) == 1


@pytest.mark.parametrize("code", [5, 2])
def test_a_first_process_that_crashes_at_once(group: Group, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setenv("RESTARTABLE", "[0]")
    outcome = group.outcome(group(f"ready(); sys.exit({code})", SLEEP))
    assert outcome[:2] == (2 if code == 2 else 1, f"rank 0 ended with exit code {code}")
    assert len(list(group.directory.glob("0-*"))) == 1


@pytest.mark.slow
def test_a_process_that_crashes_repeatedly_is_not_started_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESTARTABLE", "[1]")
    supervisor = group(SLEEP, "sys.exit(5)")
    assert group.outcome(supervisor)[:2] == (1, "rank 1 ended with exit code 5")
