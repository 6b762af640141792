"""Contestants take turns: never two at a time, rates without the stops, nothing left behind."""

import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from common.bench.turns import Command, Contestant, started, take_turns
from common.errors import UserError
from tests.conftest import StartPython

FAKE = Path(__file__).with_name("fake_contestant.py")
BLOCK = 0.6  # seconds


def fake(directory: Path, name: str, pause: float, group: int = 1, steps: int = 0) -> Command:
    own = directory / name
    arguments = [str(own), str(pause), str(group), *([str(steps)] if steps else [])]
    return Command(name, [sys.executable, str(FAKE), *arguments], own)


def turns(commands: list[Command], rounds: int, warmup_steps: int = 3) -> list[Contestant]:
    with started(commands, warmup_steps, lambda text: None) as contestants:
        take_turns(contestants, rounds, BLOCK, lambda text: None)
    return contestants


def remaining(directory: Path) -> list[psutil.Process]:
    """Processes whose command names this directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(str(directory) in part for part in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.parametrize("group", [1, 7])
def test_one_runs_at_a_time_and_every_round_has_a_block_of_each(tmp_path: Path, group: int) -> None:
    """No stop is inside of a block: others run in it, and rows of theirs would be between two of the block's."""
    contestants = turns([fake(tmp_path, name, 0.02, group) for name in "abc"], rounds=3)
    spans = []
    for contestant in contestants:
        assert len(contestant.blocks) == 3
        spans += [(block[0]["clock"], block[-1]["clock"], contestant.name) for block in contestant.blocks]
    spans.sort()
    assert "".join(name for _, _, name in spans) == "abccbaabc"
    for (_, end, _), (start, _, _) in zip(spans, spans[1:], strict=False):
        assert end <= start, "two contestants ran at the same time"
    for contestant in contestants:
        clocks = [json.loads(line)["clock"] for line in (contestant.directory / "metrics.jsonl").open()]
        others = [(start, end) for start, end, name in spans if name != contestant.name]
        assert not any(start < clock < end for clock in clocks for start, end in others)
    assert not remaining(tmp_path)


def test_one_that_ends_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^b: ended with exit code 3; see .*b\.log$"):
        turns([fake(tmp_path, "a", 0.02), fake(tmp_path, "b", 0.02, steps=10)], rounds=5)
    assert not remaining(tmp_path)


def test_one_that_ends_before_its_first_row_is_named(tmp_path: Path) -> None:
    broken = Command("broken", [sys.executable, "-c", "import sys; sys.exit('no')"], tmp_path / "broken")
    with pytest.raises(UserError, match="broken: ended with exit code 1"):
        turns([broken], rounds=1)
    assert (tmp_path / "broken.log").read_text() == "no\n"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(tmp_path: Path, start_python: StartPython, signum: signal.Signals) -> None:
    process = start_python(
        "from pathlib import Path\n"
        "from tests.unit.common.bench.test_turns import fake, turns\n"
        f"turns([fake(Path({str(tmp_path)!r}), name, 0.02) for name in 'ab'], rounds=1000)\n"
    )
    limit = time.monotonic() + 60
    while not (tmp_path / "b" / "metrics.jsonl").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(1.0)  # into the rounds
    assert len(remaining(tmp_path)) >= 4, "two contestants of two processes run or are stopped"
    process.send_signal(signum)
    process.wait(30)
    while remaining(tmp_path) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not remaining(tmp_path)


def test_peak_memory_and_start_up_are_recorded(tmp_path: Path) -> None:
    (contestant,) = turns([fake(tmp_path, "a", 0.05)], rounds=1)
    assert contestant.peak_memory > 2 * 2**20, "of two Python processes"
    assert contestant.start_up >= 0.05


@pytest.mark.skipif(not hasattr(psutil.Process, "cpu_affinity"), reason="processes cannot be bound to cores here")
def test_all_processes_of_one_are_bound_to_its_cores(tmp_path: Path) -> None:
    with started([replace(fake(tmp_path, "a", 0.05), cores=1)], 1, lambda text: None):
        found = remaining(tmp_path)
        assert len(found) == 2 and all(len(process.cpu_affinity()) == 1 for process in found)
