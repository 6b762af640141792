"""A strategy on two ranks that each hold one of two parameters. Every call of a rank needs the other rank's call."""

from collections.abc import Iterable, Iterator, Sequence
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

import numpy as np

from common.config.schema import Config
from common.data.batches import GlobalBatch
from common.training.loop import Loop
from common.training.schedule import compute_learning_rate
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, StepResult, Strategy

SECONDS = 5.0  # a collective fails if a rank waits longer for the other
NAMES = ("a.weight", "b.weight")


class MismatchError(AssertionError):
    """Error for a call of one rank that the other rank does not make."""


class Collectives:
    """Connection between the ranks. As in a process group, all ranks must make the same calls in the same order."""

    def __init__(self) -> None:
        self._barrier = Barrier(2)
        self._offered: list[tuple[str, Any]] = [("", None)] * 2

    def gather(self, rank: int, call: str, value: Any) -> list[Any]:
        """Return the values that both ranks pass to this call."""
        self._offered[rank] = call, value
        self._wait(f"rank {rank} waits in vain in: {call}")
        offered = list(self._offered)
        self._wait(f"rank {rank} waits in vain after: {call}")
        if offered[0][0] != offered[1][0]:
            raise MismatchError(f"rank 0 is in: {offered[0][0]}; rank 1 is in: {offered[1][0]}")
        return [value for _, value in offered]

    def _wait(self, problem: str) -> None:
        try:
            self._barrier.wait(SECONDS)
        except BrokenBarrierError as error:
            raise MismatchError(problem) from error


class Sharded(Strategy):
    """A strategy that minimizes (a x + b y - z)^2 by SGD with momentum. x, y and z are functions of the ids of a batch.

    Rank 0 has a and its momentum, rank 1 has b and its momentum.

    Attributes:
        states: The steps after which the state was gathered.
    """

    world_size = 2

    def __init__(self, config: Config, collectives: Collectives, rank: int) -> None:
        self.config, self.collectives, self.rank = config, collectives, rank
        self.is_chief = rank == 0
        self.parameter, self.momentum = np.array([0.5 - rank]), np.zeros(1)
        self.step = 0
        self.states: list[int] = []

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            loss, gradient = self._loss(f"step {batch.step}", batch)
            self.momentum = 0.9 * self.momentum + gradient
            self.parameter = self.parameter - compute_learning_rate(self.config, batch.step) * self.momentum
            self.step = batch.step
            yield StepResult(batch, loss, float(abs(gradient)))

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        losses = {batch.step: self._loss(f"evaluation {batch.step}", batch)[0] * batch.size for batch in batches}
        return Evaluation(sum(losses.values()), 0.0, 7.0, 7)

    def _loss(self, call: str, batch: GlobalBatch) -> tuple[float, float]:
        """Return the loss and its gradient with respect to this rank's parameter."""
        a, b = self.collectives.gather(self.rank, call, float(self.parameter[0]))
        x, y = np.cos(batch.ids), np.sin(1.7 * batch.ids)
        errors = a * x + b * y - np.cos(batch.ids + 1)
        return float((errors**2).mean()), float((2 * errors * (x, y)[self.rank]).mean())

    def state(self) -> State:
        self.states.append(self.step)
        gathered = self.collectives.gather(
            self.rank, f"state after step {self.step}", (self.parameter, self.momentum, self.states)
        )
        parameters, momenta, states = zip(*gathered, strict=True)
        assert states[0] == states[1]
        slots = {f"momentum_buffer.{name}": momentum for name, momentum in zip(NAMES, momenta, strict=True)}
        return State(dict(zip(NAMES, parameters, strict=True)), slots)

    def load(self, checkpoint: SavedState) -> None:
        state, name = checkpoint.load(), NAMES[self.rank]
        self.parameter, self.momentum = state.weights[name], state.slots[f"momentum_buffer.{name}"]
        self.step = checkpoint.position.step

    def report(self) -> dict[str, Any]:
        return {"peak_memory_bytes": []}


def run_together(loops: Sequence[Loop]) -> list[BaseException | None]:
    """Run the loops of both ranks at the same time. Return the error that each rank raised."""
    raised: list[BaseException | None] = [None, None]

    def run(rank: int) -> None:
        try:
            loops[rank].run()
        except BaseException as error:
            raised[rank] = error

    threads = [Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10 * SECONDS)
        assert not thread.is_alive()
    return raised
