"""Contestants take turns: each runs for a block while all others are stopped, and a round has a block of each.

Other load on the machine, and its clock rate, change within minutes. In a round they are about the same for all.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from common.bench.guard import Guard
from common.bench.process_tree import ProcessTree
from common.bench.rows import Row, Rows, between_stops
from common.errors import UserError

POLL_SECONDS = 0.05
SILENT_SECONDS = 600.0  # without the rows that are waited for
FEWEST_ROWS = 3  # of a block
FINISH_SECONDS = 20.0  # to write a summary at the end


@dataclass(frozen=True)
class Command:
    """How to start a contestant, which appends a row for each step to `metrics.jsonl` in `directory`.

    A row has `step`, counters of what was done so far (such as `examples` and `tokens`), and `seconds` of a clock that
    never goes back. cores: how many its processes may use; None: all.
    """

    name: str
    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None


class Contestant:
    """A contestant that has been started. blocks: the rows of each block so far. start_up: seconds to the first row."""

    def __init__(self, command: Command, guard: Guard) -> None:
        self.name, self.directory, self._guard = command.name, command.directory, guard
        self.log = self.directory.with_suffix(".log")
        self.rows = Rows(self.directory / "metrics.jsonl")
        self.began = self.stopped_at = time.perf_counter()
        self.tree = ProcessTree(command.command, command.environment, self.log, command.cores)
        guard.watch([self.tree.root])
        self.start_up = 0.0
        self.peak_memory = 0
        self.blocks: list[list[Row]] = []

    def warm_up(self, steps: int) -> None:
        """Run until there are rows of so many steps, then stop."""
        self._run_until(lambda: bool(self.rows.read()))
        self.start_up = time.perf_counter() - self.began
        self._run_until(lambda: self.rows.read()[-1]["step"] >= steps)
        self._stop()

    def take_turn(self, seconds: float) -> None:
        """Run for so many seconds, or as many more as a few steps take, then stop."""
        before, started = len(self.rows.read()), time.perf_counter()
        stopped = started - self.stopped_at
        self.tree.resume()
        self._run_until(
            lambda: (
                time.perf_counter() - started >= seconds
                and len(between_stops(self.rows.read(), before, stopped)) >= FEWEST_ROWS
            )
        )
        self._stop()
        self.blocks.append(between_stops(self.rows.read(), before, stopped))

    def _run_until(self, done: Callable[[], bool]) -> None:
        started = time.perf_counter()
        while not done():
            if self.tree.exit_code is not None:
                raise UserError(f"{self.name}: ended with exit code {self.tree.exit_code}; see {self.log}")
            if time.perf_counter() - started > SILENT_SECONDS:
                raise UserError(f"{self.name}: too few rows in {SILENT_SECONDS:.0f} s; see {self.log}")
            time.sleep(POLL_SECONDS)

    def _stop(self) -> None:
        self.tree.stop()
        self.stopped_at = time.perf_counter()
        self._guard.watch(self.tree.stopped)
        self.peak_memory = self.tree.peak_memory()


@contextmanager
def started(commands: Sequence[Command], warmup_steps: int, tell: Callable[[str], None]) -> Iterator[list[Contestant]]:
    """Start contestants one after the other, each warmed up and stopped. None of their processes outlives the context.

    Raises UserError for one that ends.
    """
    with Guard() as guard:
        contestants = []
        for command in commands:
            tell(f"starting {command.name}")
            command.directory.mkdir(parents=True)
            contestant = Contestant(command, guard)
            contestant.warm_up(warmup_steps)
            contestants.append(contestant)
        yield contestants


def take_turns(contestants: Sequence[Contestant], rounds: int, seconds: float, tell: Callable[[str], None]) -> None:
    """Rounds of one block each; the order is reversed every other round. Raises UserError for one that ends."""
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            contestant.take_turn(seconds)


def finish(contestants: Sequence[Contestant]) -> None:
    """Let each end by itself, which writes its summary if it has one."""
    for contestant in contestants:
        contestant.tree.finish(FINISH_SECONDS)
