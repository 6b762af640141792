"""Tests of the tour of collectives. Its command is started as a user does, except for mistakes and help."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from tests.conftest import ROOT, wait_until
from torch_impl.collectives import main
from torch_impl.communication.allreduce import ALGORITHMS

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "torch_impl.collectives"]
# The values of each rank after the operation. Before it, rank r has 10r, 10r + 1 and 10r + 2.
AFTER = {
    "send / recv": ["0 1 2", "0 1 2", "20 21 22"],
    "isend / irecv": ["20 21 22", "0 1 2", "10 11 12"],
    "broadcast": ["0 1 2", "0 1 2", "0 1 2"],
    "scatter": ["0", "1", "2"],
    "gather": ["0 1 2 10 11 12 20 21 22", "", ""],
    "reduce": ["30 33 36", "", ""],
    "all_reduce": ["30 33 36"] * 3,
    "all_gather": ["0 1 2 10 11 12 20 21 22"] * 3,
    "reduce_scatter": ["30", "33", "36"],
    "all_to_all": ["0 10 20", "1 11 21", "2 12 22"],
}
SENDS = {  # in MiB; Gloo does not specify the traffic of the other operations
    "send / recv": [1, 0, 0],
    "isend / irecv": [1, 1, 1],
    "scatter": [2 / 3, 0, 0],
    "gather": [0, 1, 1],
    "all_reduce": [4 / 3] * 3,
    "all_gather": [2, 2, 2],
    "all_to_all": [2 / 3] * 3,
}


@pytest.fixture(scope="module")
def output() -> str:
    command = [*COMMAND, "--ranks", "3", "--quick", "--sizes", "64", "4K"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables in a text, without the headings."""
    return [[cell.strip() for cell in line.strip("│ ").split("│")] for line in text.splitlines() if line[:1] == "│"]


@pytest.mark.parametrize("name", AFTER)
def test_every_operation_is_shown(output: str, name: str) -> None:
    _, shown, text = output.partition(f"\n{name}  ")
    assert shown
    table = rows(text.split("\n\n")[0])
    before = [" ".join(str(10 * rank + part) for part in range(3)) for rank in range(3)]
    assert [row[:3] for row in table] == [[str(rank), before[rank], AFTER[name][rank]] for rank in range(3)]
    sends = [float(row[3].removesuffix(" MiB")) for row in table]
    assert sends == pytest.approx(SENDS.get(name, sends), abs=0.02)


def test_the_table_has_every_algorithm_at_every_size(output: str) -> None:
    _, _, text = output.partition("\nall-reduce, 3 ranks")
    assert re.search(r"alpha = [\d.]+ µs", text) and re.search(r"beta =\s[\d.]+ ns", text)
    table = rows(text)
    assert [row[:2] for row in table] == [[size, algorithm] for size in ("64", "4096") for algorithm in ALGORITHMS]
    for row in table:
        measured, predicted = (float(cell.removesuffix(" ms")) for cell in row[2:4])
        assert 0 < predicted < 1000 and 0 < measured < 10000
        size, bandwidth = int(row[0]), float(row[4].removesuffix(" MB/s"))
        assert bandwidth == pytest.approx(4 / 3 * size / measured / 1e3, rel=0.01, abs=0.06)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "1"], ["--ranks", "1", "2 to 16"]),
        (["--ranks", "many"], ["--ranks", "many", "2 to 16"]),
        (["--ranks", "100"], ["--ranks", "100", "2 to 16"]),
        (["--sizes", "4K", "10"], ["--sizes", "10", "multiple of 4"]),
        (["--sizes", "0"], ["--sizes", "0", "multiple of 4"]),
        (["--sizes", "4G"], ["--sizes", "4G", "64M"]),
        (["--sizes"], ["--sizes", "expected at least one"]),
        (["--fast"], ["--fast"]),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output, errors = capsys.readouterr()
    assert (ended.value.code, output) == (2, "")
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert all(word in errors for word in words)


def is_running(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


Start = Callable[..., tuple[subprocess.Popen[str], list[psutil.Process]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a tour and wait until its ranks are connected. Return the command and its ranks."""
    started: list[subprocess.Popen[str]] = []

    def starting() -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        command = [*COMMAND, "--ranks", "2", "--sizes", "64M"]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        assert started[0].stdout is not None
        assert "2 ranks" in started[0].stdout.readline()
        ranks = psutil.Process(started[0].pid).children(recursive=True)
        assert len(ranks) == 2
        return started[0], ranks

    yield starting
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_outlives_the_command(start: Start, signum: int, code: int) -> None:
    command, ranks = start()
    command.send_signal(signum)
    assert command.wait(10) == code
    wait_until(lambda: not any(map(is_running, ranks)), 10)


def test_a_rank_that_crashes_ends_the_command_and_is_named(start: Start) -> None:
    command, ranks = start()
    crashed = next(rank for rank in ranks if rank.environ()["RANK"] == "1")
    crashed.kill()
    _, errors = command.communicate(timeout=20)
    assert command.returncode == 1
    assert "failed: rank 1 ended with signal SIGKILL" in errors
    assert not any(map(is_running, ranks))


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--ranks", "--sizes", "--quick"))
