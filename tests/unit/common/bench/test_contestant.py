"""Contestants take turns: only one runs at a time, and no process is left behind."""

import json
import signal
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from common.bench.contestant import MAX_WAIT_SECONDS, Contestant, ContestantCommand, start_contestants, take_turns
from common.errors import UserError
from tests.conftest import StartPython, wait_until

pytestmark = pytest.mark.slow

FAKE = Path(__file__).with_name("fake_contestant.py")
BLOCK = 0.6  # seconds
WARMUP_STEPS = 3


def fake_command(directory: Path, name: str, pause: float, group: int = 1, steps: int = 0) -> ContestantCommand:
    """Return the command of a contestant that only sleeps: see fake_contestant.py. With 0 steps it never ends."""
    output = directory / name
    arguments = [str(output), str(pause), str(group), *([str(steps)] if steps else [])]
    return ContestantCommand(name, [sys.executable, str(FAKE), *arguments], output)


def run_turns(commands: list[ContestantCommand], rounds: int, warmup_steps: int = WARMUP_STEPS) -> list[Contestant]:
    with start_contestants(commands, warmup_steps, lambda text: None) as contestants:
        take_turns(contestants, rounds, BLOCK, lambda text: None)
    return contestants


def find_processes(directory: Path) -> list[psutil.Process]:
    """Return the processes whose command names this directory."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(str(directory) in part for part in process.cmdline()):
                processes.append(process)
        except psutil.NoSuchProcess:
            continue
    return processes


def count_rows(directory: Path) -> int:
    path = directory / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("group", [1, 7])
def test_contestants_run_one_at_a_time_for_a_block_per_round(tmp_path: Path, group: int) -> None:
    """A block contains no stop, because during a stop another contestant runs and writes rows."""
    contestants = run_turns([fake_command(tmp_path, name, 0.02, group) for name in "abc"], rounds=3)
    spans = []
    for contestant in contestants:
        assert len(contestant.blocks) == 3
        spans += [(block[0]["clock"], block[-1]["clock"], contestant.name) for block in contestant.blocks]
    spans.sort()
    assert "".join(name for _, _, name in spans) == "abccbaabc"
    for (_, end, _), (start, _, _) in pairwise(spans):
        assert end <= start, "two contestants ran at the same time"
    for contestant in contestants:
        clocks = [json.loads(line)["clock"] for line in (contestant.directory / "metrics.jsonl").open()]
        others = [(start, end) for start, end, name in spans if name != contestant.name]
        assert not any(start < clock < end for clock in clocks for start, end in others)
    assert not find_processes(tmp_path)


def test_a_contestant_that_ends_is_named_and_the_others_are_stopped(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^b: ended with exit code 3; see .*b\.log$"):
        run_turns([fake_command(tmp_path, "a", 0.02), fake_command(tmp_path, "b", 0.02, steps=10)], rounds=5)
    assert not find_processes(tmp_path)


def test_a_turn_may_be_longer_than_the_limit_for_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    rows = [{"seconds": 0.0}]

    def sleep(seconds: float) -> None:
        clock.now += MAX_WAIT_SECONDS / 2
        rows.append({"seconds": clock.now})

    monkeypatch.setattr("common.bench.contestant.time", SimpleNamespace(perf_counter=lambda: clock.now, sleep=sleep))
    contestant: Any = Contestant.__new__(Contestant)  # without processes
    contestant.name, contestant.log = "a", Path("a.log")
    contestant.metrics, contestant.suspended_at, contestant.blocks = SimpleNamespace(read=lambda: rows), 0.0, []
    contestant.tree = SimpleNamespace(
        exit_code=None, suspended=[], resume=lambda: None, suspend=lambda: None, peak_memory=lambda: 0
    )
    contestant._guard = SimpleNamespace(watch=lambda processes: None)
    contestant.take_turn(2 * MAX_WAIT_SECONDS)
    assert contestant.blocks == [rows[1:]]


def test_a_contestant_that_ends_before_the_first_row_is_named(tmp_path: Path) -> None:
    broken = ContestantCommand("broken", [sys.executable, "-c", "import sys; sys.exit('no')"], tmp_path / "broken")
    with pytest.raises(UserError, match="broken: ended with exit code 1"):
        run_turns([broken], rounds=1)
    assert (tmp_path / "broken.log").read_text() == "no\n"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_after_a_signal(tmp_path: Path, start_python: StartPython, signum: signal.Signals) -> None:
    process = start_python(
        "from pathlib import Path\n"
        "from tests.unit.common.bench.test_contestant import fake_command, run_turns\n"
        f"run_turns([fake_command(Path({str(tmp_path)!r}), name, 0.02) for name in 'ab'], rounds=1000)\n"
    )
    wait_until(lambda: count_rows(tmp_path / "b") > 2 * WARMUP_STEPS)  # the rounds have started
    assert len(find_processes(tmp_path)) >= 4, "each of the two contestants has two processes"
    process.send_signal(signum)
    process.wait(30)
    wait_until(lambda: not find_processes(tmp_path))


def test_peak_memory_and_start_up_are_recorded(tmp_path: Path) -> None:
    (contestant,) = run_turns([fake_command(tmp_path, "a", 0.05)], rounds=1)
    assert contestant.peak_memory > 2 * 2**20, "the memory of two Python processes"
    assert contestant.start_up >= 0.05


@pytest.mark.skipif(not hasattr(psutil.Process, "cpu_affinity"), reason="processes cannot be bound to cores here")
def test_all_processes_of_a_contestant_are_bound_to_its_cores(tmp_path: Path) -> None:
    with start_contestants([replace(fake_command(tmp_path, "a", 0.05), cores=1)], 1, lambda text: None):
        processes = find_processes(tmp_path)
        assert len(processes) == 2 and all(len(process.cpu_affinity()) == 1 for process in processes)
