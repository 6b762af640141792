"""The training loop, written once: it feeds a strategy, and records and evaluates what comes out of it."""

import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat

import numpy as np

from common.config import Config
from common.data.batches import GlobalBatch, evaluation_batches, training_batches
from common.data.cache import Cache
from common.processes import Stop
from common.progress import TrainingProgress
from common.record import Recorder
from common.schedule import learning_rate

log = logging.getLogger("lockstep")


@dataclass(frozen=True)
class StepResult:
    """One update. `loss` (mean over `batch`) and `grad_norm` stay on the device until float() fetches them.

    staleness: the updates applied between the worker's read of the parameters and this one. worker: its index. Both are
    asynchronous strategies' alone. traffic: bytes that each replica moved, by kind, where the strategy counts them.
    """

    batch: GlobalBatch
    loss: SupportsFloat
    grad_norm: SupportsFloat
    staleness: int | None = None
    worker: int | None = None
    traffic: dict[str, list[int]] | None = None


@dataclass(frozen=True)
class Evaluation:
    """Loss summed over the examples, number of right answers and of examples."""

    summed_loss: float
    right: float
    count: int

    @property
    def loss(self) -> float:
        return self.summed_loss / self.count

    @property
    def accuracy(self) -> float:
        return self.right / self.count


class Strategy(Protocol):
    """What a strategy is to the loop."""

    world_size: int
    is_chief: bool

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """Update the parameters from each global batch. When it ends, all its work is joined."""

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        """Every example of the batches exactly once."""

    def state(self) -> dict[str, np.ndarray]:
        """The parameters under their Hugging Face names, in PyTorch's layout."""

    def report(self) -> dict[str, Any]:
        """What summary.json says of the strategy itself, joined from all ranks, each of which calls it.

        `peak_memory_bytes` is of each replica: of its GPU, or resident in its process, which replicas may share.
        """


class NonFiniteLoss(RuntimeError):
    """The loss of a step is nan or infinite."""


def run(config: Config, strategy: Strategy, cache: Cache, recorder: Recorder | None, stop: Stop) -> dict[str, Any]:
    """Train on `train.steps` global batches, evaluating every `train.eval_every` and at the end.

    Every rank runs it; `recorder` is None but on the chief. Returns the strategy's report. Raises NonFiniteLoss, and
    Interrupted when `stop` was asked.
    """
    progress = None
    if recorder is not None:
        title = f"{config.strategy.name} x{strategy.world_size}"
        updates = config.train.steps * config.strategy.updates_per_batch
        progress = TrainingProgress(title, updates, config.train.log_every)
    try:
        Loop(config, strategy, cache, recorder, progress, stop).run()
        return strategy.report()
    finally:
        if progress is not None:
            progress.close()


class Loop:
    """The steps and evaluations of one run."""

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        cache: Cache,
        recorder: Recorder | None,
        progress: TrainingProgress | None,
        stop: Stop,
    ) -> None:
        self.config, self.strategy, self.cache = config, strategy, cache
        self.recorder, self.progress, self.stop = recorder, progress, stop
        self.step = self.examples = self.tokens = 0  # recorded so far
        self.began = time.perf_counter()
        self.shown, self.since = 0, 0.0  # examples at, and time of, the last progress; for the speed

    def run(self) -> None:
        """All steps, with the evaluations between them."""
        steps = self.config.train.steps
        every = self.config.train.eval_every or steps
        for first in range(1, steps + 1, every):
            last = min(first + every - 1, steps)
            self.train(range(first, last + 1))
            self.evaluate()

    def train(self, steps: range) -> None:
        """Train on these global batches and record the updates that they make."""
        train = self.config.train
        batches = training_batches(self.cache.train, train.global_batch_size, train.seed, steps)
        block: list[tuple[StepResult, float]] = []
        for result in self.strategy.train(self.stop.end(batches)):
            block.append((result, self._seconds()))
            if (self.step + len(block)) % train.log_every == 0:
                self._fetch(block)
                block = []
        if block:
            self._fetch(block)
        self.stop.check()

    def _fetch(self, block: list[tuple[StepResult, float]]) -> None:
        """Bring a block of results from the device: the only place where the host waits for it."""
        rows: list[dict[str, Any]] = []
        traffic: list[dict[str, Any]] = []
        for result, seconds in block:
            loss, grad_norm = float(result.loss), float(result.grad_norm)
            if not math.isfinite(loss):
                self._record(rows, traffic)
                ids = result.batch.ids.tolist()
                raise NonFiniteLoss(f"step {result.batch.step}: the loss is {loss}; training examples {ids}")
            self.step += 1
            self.examples += result.batch.size
            self.tokens += result.batch.tokens
            row: dict[str, Any] = {
                "step": self.step,
                "loss": loss,
                "examples": self.examples,
                "tokens": self.tokens,
                "learning_rate": learning_rate(self.config, result.batch.step),
                "grad_norm": grad_norm,
                "seconds": seconds,
            }
            if result.staleness is not None:
                row |= {"staleness": result.staleness, "worker": result.worker}
                row |= {"batch": result.batch.step, "part": result.batch.part}
            rows.append(row)
            if result.traffic is not None:
                traffic.append({"step": self.step, **result.traffic})
        rows[-1]["seconds"] = self._seconds()  # the device has finished only now
        self._record(rows, traffic)

    def _record(self, rows: list[dict[str, Any]], traffic: list[dict[str, Any]]) -> None:
        if self.recorder is not None and self.progress is not None and rows:
            self.recorder.steps(rows)
            self.recorder.traffic(traffic)
            now = self._seconds()
            self.progress.steps(rows, (self.examples - self.shown) / (now - self.since))
            self.shown, self.since = self.examples, now

    def evaluate(self) -> None:
        """Evaluate and record it."""
        start = self._seconds()
        batches = evaluation_batches(self.cache.validation, self.config.train.global_batch_size)
        evaluation = self.strategy.evaluate(self.stop.end(batches))
        self.stop.check()
        self.since = self._seconds()
        if self.recorder is not None and self.progress is not None:
            row = {
                "step": self.step,
                "examples": self.examples,
                "loss": evaluation.loss,
                "accuracy": evaluation.accuracy,
                "count": evaluation.count,
                "duration": self.since - start,
            }
            self.recorder.evaluation(row)
            self.progress.evaluation(row)

    def _seconds(self) -> float:
        return time.perf_counter() - self.began
