"""The training loop, written once: it feeds a strategy, and records, evaluates and saves what comes out of it."""

import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, SupportsFloat

from common.cluster.processes import Stop
from common.config.schema import Config
from common.data.batches import GlobalBatch, evaluation_batches, training_batches
from common.data.plan import examples_until
from common.data.text.token_cache import Cache
from common.errors import Interrupted
from common.run.checkpoint import Checkpoint, Checkpoints, Position, State
from common.run.directory import Recorder
from common.run.progress import TrainingProgress
from common.training.schedule import learning_rate

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

    def state(self) -> State:
        """What it has trained so far. The chief alone calls it."""

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from what a checkpoint holds. Every process of the run calls it, before anything is trained."""

    def report(self) -> dict[str, Any]:
        """What summary.json says of the strategy itself, joined from all ranks, each of which calls it.

        `peak_memory_bytes` is of each replica: of its GPU, or resident in its process, which replicas may share.
        """


class NonFiniteLoss(RuntimeError):
    """The loss of a step is nan or infinite."""


def run(
    config: Config,
    strategy: Strategy,
    cache: Cache,
    recorder: Recorder | None,
    checkpoints: Checkpoints | None,
    stop: Stop,
    start: Position,
) -> dict[str, Any]:
    """Train on the global batches after `start`, up to `train.steps` or until no evaluation betters the best.

    Every rank runs it; `recorder` and `checkpoints` are None but on the chief. Returns the strategy's report. Raises
    NonFiniteLoss, and Interrupted, with the last step saved, when `stop` was asked.
    """
    progress = None
    if recorder is not None:
        title = f"{config.strategy.name} x{strategy.world_size}"
        updates = (config.train.steps - start.plan_position) * config.strategy.updates_per_batch
        progress = TrainingProgress(title, start.step + updates, config.train.log_every)
    try:
        Loop(config, strategy, cache, recorder, checkpoints, progress, stop, start).run()
        return strategy.report()
    finally:
        if progress is not None:
            progress.close()


class Loop:
    """The steps, evaluations and checkpoints of one run."""

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        cache: Cache,
        recorder: Recorder | None,
        checkpoints: Checkpoints | None,
        progress: TrainingProgress | None,
        stop: Stop,
        start: Position,
    ) -> None:
        self.config, self.strategy, self.cache = config, strategy, cache
        self.recorder, self.checkpoints, self.progress, self.stop = recorder, checkpoints, progress, stop
        self.position, self.saved = replace(start), replace(start)
        self.began = time.perf_counter() - start.seconds
        self.shown, self.since = start.examples, start.seconds  # examples at, and time of, the last progress

    def run(self) -> None:
        """All steps, with the evaluations and checkpoints between them."""
        try:
            while True:
                if self._evaluation_is_due():
                    self.evaluate()
                if self._is_done() or self._is_due(self.config.train.checkpoint_every):
                    self.save()
                if self._is_done():
                    self._say_if_early()
                    break
                self.train(self._until_something_is_due())
        except Interrupted:
            self.save()
            raise
        finally:
            if self.checkpoints is not None:
                self.checkpoints.finish()

    def _is_done(self) -> bool:
        patience = self.config.train.early_stopping.patience
        stopped_early = patience is not None and self.position.waited >= patience
        return stopped_early or self.position.plan_position >= self.config.train.steps

    def _say_if_early(self) -> None:
        if self.position.plan_position < self.config.train.steps:
            stopping = self.config.train.early_stopping
            told = f"train.early_stopping.patience={stopping.patience}: no better validation {stopping.metric}"
            log.info("%s; stopping early", told)

    def _evaluation_is_due(self) -> bool:
        ends = self.position.plan_position >= self.config.train.steps
        return self.position.validation is None and (ends or self._is_due(self.config.train.eval_every))

    def _is_due(self, every: int | None) -> bool:
        return is_due(self.config, len(self.cache.train), self.position.plan_position, every)

    def _until_something_is_due(self) -> range:
        train, first = self.config.train, self.position.plan_position + 1
        for last in range(first, train.steps):
            if any(
                is_due(self.config, len(self.cache.train), last, e) for e in (train.eval_every, train.checkpoint_every)
            ):
                return range(first, last + 1)
        return range(first, train.steps + 1)

    def save(self) -> None:
        """Save a checkpoint, unless this position has one. Raises UserError where the last could not be written."""
        if self.recorder is not None and self.checkpoints is not None and self.position != self.saved:
            self.recorder.sync()
            self.checkpoints.save(self.strategy.state(), self.position)
            self.saved = replace(self.position)

    def train(self, steps: range) -> None:
        """Train on these global batches and record the updates that they make."""
        train = self.config.train
        batches = training_batches(self.cache.train, train.global_batch_size, train.seed, steps)
        block: list[tuple[StepResult, float]] = []
        for result in self.strategy.train(self.stop.end(batches)):
            block.append((result, self._seconds()))
            if (self.position.step + len(block)) % train.log_every == 0:
                self._fetch(block)
                block = []
        if block:
            self._fetch(block)
        self.stop.check()

    def _fetch(self, block: list[tuple[StepResult, float]]) -> None:
        """Bring a block of results from the device: the only place where the host waits for it."""
        position = self.position
        rows: list[dict[str, Any]] = []
        traffic: list[dict[str, Any]] = []
        for result, seconds in block:
            loss, grad_norm = float(result.loss), float(result.grad_norm)
            if not math.isfinite(loss):
                self._record(rows, traffic)
                ids = result.batch.ids.tolist()
                raise NonFiniteLoss(f"step {result.batch.step}: the loss is {loss}; training examples {ids}")
            position.step += 1
            position.plan_position = max(position.plan_position, result.batch.step)
            position.examples += result.batch.size
            position.tokens += result.batch.tokens
            position.validation = None
            row: dict[str, Any] = {
                "step": position.step,
                "loss": loss,
                "examples": position.examples,
                "tokens": position.tokens,
                "learning_rate": learning_rate(self.config, result.batch.step),
                "grad_norm": grad_norm,
                "seconds": seconds,
            }
            if result.staleness is not None:
                row |= {"staleness": result.staleness, "worker": result.worker}
                row |= {"batch": result.batch.step, "part": result.batch.part}
            rows.append(row)
            if result.traffic is not None:
                traffic.append({"step": position.step, **result.traffic})
        rows[-1]["seconds"] = position.seconds = self._seconds()  # the device has finished only now
        self._record(rows, traffic)

    def _record(self, rows: list[dict[str, Any]], traffic: list[dict[str, Any]]) -> None:
        if self.recorder is not None and self.progress is not None and rows:
            self.recorder.steps(rows)
            self.recorder.traffic(traffic)
            now = self._seconds()
            self.progress.steps(rows, (self.position.examples - self.shown) / (now - self.since))
            self.shown, self.since = self.position.examples, now

    def evaluate(self) -> None:
        """Evaluate, record it and see whether it is the best so far."""
        start = self._seconds()
        batches = evaluation_batches(self.cache.validation, self.config.train.global_batch_size)
        evaluation = self.strategy.evaluate(self.stop.interrupt(batches))
        self.since = self._seconds()
        self._judge(evaluation)
        if self.recorder is not None and self.progress is not None:
            row = {
                "step": self.position.step,
                "examples": self.position.examples,
                "loss": evaluation.loss,
                "accuracy": evaluation.accuracy,
                "count": evaluation.count,
                "duration": self.since - start,
            }
            self.recorder.evaluation(row)
            self.progress.evaluation(row)

    def _judge(self, evaluation: Evaluation) -> None:
        """The same numbers on every rank, so that all of them stop at the same step."""
        stopping, position = self.config.train.early_stopping, self.position
        position.validation = {"loss": evaluation.loss, "accuracy": evaluation.accuracy}
        value = evaluation.loss if stopping.metric == "loss" else -evaluation.accuracy
        if position.best is None or value < position.best - stopping.min_delta:
            position.best, position.waited = value, 0
        else:
            position.waited += 1

    def _seconds(self) -> float:
        return time.perf_counter() - self.began


def is_due(config: Config, train_examples: int, plan_position: int, every: int | None) -> bool:
    """Whether what comes `every` so many steps, or after each virtual epoch, comes after this global batch."""
    train = config.train
    if train.virtual_epoch_examples is None:
        return every is not None and plan_position > 0 and plan_position % every == 0
    before, now = (
        examples_until(train_examples, train.global_batch_size, n) for n in (plan_position - 1, plan_position)
    )
    return now // train.virtual_epoch_examples > before // train.virtual_epoch_examples
