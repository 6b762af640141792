"""Contestants take turns: each runs for a block of time while all others are suspended. A round has a block of each.

A contestant is a command whose speed is measured. Other load on the machine, and its clock rate, change within minutes.
Within a round, both are about the same for all contestants.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from common.bench.guard import Guard
from common.bench.metrics_rows import MetricsTail, Row, select_rows_after_resume
from common.bench.process_tree import ProcessTree
from common.errors import UserError

POLL_SECONDS = 0.05
# Longest time of a warm-up, and longest delay after the end of a turn, before a contestant has failed
MAX_WAIT_SECONDS = 600.0
MIN_BLOCK_ROWS = 3
FINISH_SECONDS = 20.0  # time for a contestant to write its summary at the end


@dataclass(frozen=True)
class ContestantCommand:
    """The command of a contestant, which appends a row for each step to `metrics.jsonl` in `directory`.

    A row has `step`, counters of the work so far (such as `examples` and `tokens`), and `seconds` of a monotonic clock.

    Attributes:
        name: the name of the contestant.
        command: the command and its arguments.
        directory: the directory of its files.
        environment: variables to add to the environment.
        cores: how many cores its processes may use; None for all.
    """

    name: str
    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None


class Contestant:
    """A started contestant.

    Attributes:
        blocks: the rows of each block so far.
        start_up: the seconds until the first row.
        peak_memory: the peak resident memory of all its processes, in bytes.
    """

    def __init__(self, command: ContestantCommand, guard: Guard) -> None:
        self.name, self.directory, self._guard = command.name, command.directory, guard
        self.log = self.directory.with_suffix(".log")
        self.metrics = MetricsTail(self.directory / "metrics.jsonl")
        self.started_at = self.suspended_at = time.perf_counter()
        self.tree = ProcessTree(command.command, command.environment, self.log, command.cores)
        guard.watch([self.tree.root])
        self.start_up = 0.0
        self.peak_memory = 0
        self.blocks: list[list[Row]] = []

    def warm_up(self, steps: int) -> None:
        """Run until this many steps are recorded, then suspend."""
        self._run_until(lambda: bool(self.metrics.read()))
        self.start_up = time.perf_counter() - self.started_at
        self._run_until(lambda: self.metrics.read()[-1]["step"] >= steps)
        self._suspend()

    def take_turn(self, seconds: float) -> None:
        """Run for this many seconds, or longer until the block has a few rows, then suspend."""
        count_before, resumed_at = len(self.metrics.read()), time.perf_counter()
        suspended_seconds = resumed_at - self.suspended_at

        def read_block() -> list[Row]:
            return select_rows_after_resume(self.metrics.read(), count_before, suspended_seconds)

        self.tree.resume()
        self._run_until(
            lambda: time.perf_counter() - resumed_at >= seconds and len(read_block()) >= MIN_BLOCK_ROWS,
            seconds + MAX_WAIT_SECONDS,
        )
        self._suspend()
        self.blocks.append(read_block())

    def _run_until(self, is_done: Callable[[], bool], max_seconds: float = MAX_WAIT_SECONDS) -> None:
        """Wait while the contestant runs. Raise UserError if it ends or takes longer than `max_seconds`."""
        started_at = time.perf_counter()
        while not is_done():
            if self.tree.exit_code is not None:
                raise UserError(f"{self.name}: ended with exit code {self.tree.exit_code}; see {self.log}")
            if time.perf_counter() - started_at > max_seconds:
                raise UserError(f"{self.name}: too few rows in {max_seconds:.0f} s; see {self.log}")
            time.sleep(POLL_SECONDS)

    def _suspend(self) -> None:
        self.tree.suspend()
        self.suspended_at = time.perf_counter()
        self._guard.watch(self.tree.suspended)
        self.peak_memory = self.tree.peak_memory()


@contextmanager
def start_contestants(
    commands: Sequence[ContestantCommand], warmup_steps: int, report: Callable[[str], None]
) -> Iterator[list[Contestant]]:
    """Start, warm up and suspend contestants one after the other. Leaving the context kills all contestants.

    Raises:
        UserError: a contestant ended too early, or wrote too few rows.
    """
    with Guard() as guard:
        contestants = []
        for command in commands:
            report(f"starting {command.name}")
            command.directory.mkdir(parents=True)
            contestant = Contestant(command, guard)
            contestant.warm_up(warmup_steps)
            contestants.append(contestant)
        yield contestants


def take_turns(contestants: Sequence[Contestant], rounds: int, seconds: float, report: Callable[[str], None]) -> None:
    """Run rounds with a block of each contestant; every other round has them in reverse order.

    Raises:
        UserError: a contestant ended too early, or wrote too few rows.
    """
    for index in range(rounds):
        report(f"round {index + 1} of {rounds}")
        for contestant in contestants if index % 2 == 0 else reversed(contestants):
            contestant.take_turn(seconds)


def finish_contestants(contestants: Sequence[Contestant]) -> None:
    """Ask each contestant to end, and wait until it has; a run of Lockstep then writes its summary."""
    for contestant in contestants:
        contestant.tree.finish(FINISH_SECONDS)
