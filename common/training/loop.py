"""The training loop, written once: it feeds a strategy, and reports what comes out of it to observers."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

from common.config.schema import Config
from common.data.batch_plan import count_examples_until
from common.data.cache import Cache
from common.errors import Interrupted
from common.training.observer import Observer
from common.training.planned_batches import planned_batches, validation_batches
from common.training.rows import Row
from common.training.schedule import compute_learning_rate
from common.training.state import Position
from common.training.stop import Stop
from common.training.strategy import Evaluation, StepResult, Strategy

PROFILED = range(11, 16)  # of the updates that a process makes, from 1

Profile = Callable[[], AbstractContextManager[None]]  # writes a trace of its body

log = logging.getLogger("lockstep")


class NonFiniteLoss(RuntimeError):
    """The loss of a step is nan or infinite."""


class Loop:
    """The steps, evaluations and checkpoints of one run. Every rank runs it; the chief's has observers."""

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        cache: Cache,
        start: Position,
        stop: Stop,
        observers: Sequence[Observer] = (),
        profile: Profile | None = None,
    ) -> None:
        self.config, self.strategy, self.cache, self.stop, self.observers = config, strategy, cache, stop, observers
        self.profile, self.profiling = profile, ExitStack()
        self.trained = 0  # updates of this process, where they are profiled
        self.position, self.saved = replace(start), replace(start)
        self.first = start.step + 1
        self.began = time.perf_counter() - start.seconds
        self.shown, self.since = start.examples, start.seconds  # examples and time at the last report of progress
        self.save_at = self._next_save()

    def run(self) -> None:
        """Train on the global batches after the start, up to `train.steps` or an early stop.

        Raises NonFiniteLoss, and Interrupted after a stop that the ranks agreed on, with the last step saved.
        """
        try:
            while True:
                if self._evaluation_is_due():
                    self.evaluate()
                if self._is_done() or self._is_due(self.config.train.checkpoint_every) or self.stop.saving:
                    self.save()
                if self._is_done():
                    self._log_early_stop()
                    break
                self.train(self._until_something_is_due())
        except Interrupted:
            self.save()
            raise
        finally:
            self.profiling.close()

    def _is_done(self) -> bool:
        patience = self.config.train.early_stopping.patience
        stopped_early = patience is not None and self.position.waited >= patience
        return stopped_early or self.position.plan_position >= self.config.train.steps

    def _log_early_stop(self) -> None:
        if self.position.plan_position < self.config.train.steps:
            stopping = self.config.train.early_stopping
            reason = f"train.early_stopping.patience={stopping.patience}: no better validation {stopping.metric}"
            log.info("%s; stopping early", reason)

    def _evaluation_is_due(self) -> bool:
        ends = self.position.plan_position >= self.config.train.steps
        return self.position.validation is None and (ends or self._is_due(self.config.train.eval_every))

    def _is_due(self, every: int | None) -> bool:
        return is_due(self.config, len(self.cache.train), self.position.plan_position, every)

    def _until_something_is_due(self) -> range:
        train, first, count = self.config.train, self.position.plan_position + 1, len(self.cache.train)
        for last in range(first, train.steps):
            if any(is_due(self.config, count, last, every) for every in (train.eval_every, train.checkpoint_every)):
                return range(first, last + 1)
        return range(first, train.steps + 1)

    def save(self) -> None:
        """Have a checkpoint saved, unless this position has one."""
        self.stop.saving = False
        if self.position != self.saved:
            state = self.strategy.state()
            for observer in self.observers:
                observer.save(state, self.position)
            self.saved = replace(self.position)
        self.save_at = self._next_save()

    def _next_save(self) -> float:
        """When `train.checkpoint_seconds` will have passed: the chief decides by its clock for all ranks."""
        seconds = self.config.train.checkpoint_seconds
        return self._seconds() + seconds if seconds is not None and self.strategy.is_chief else math.inf

    def train(self, steps: range) -> None:
        """Train on these global batches and report the updates that they make."""
        train, batches = self.config.train, planned_batches(self.config, self.cache.train, steps)
        block: list[tuple[StepResult, float]] = []
        for result in self._profiled(self.strategy.train(self.stop.end(batches))):
            block.append((result, self._seconds()))
            step = self.position.step + len(block)
            if step % train.log_every == 0 or step == self.first:  # a first sign that training runs
                self._fetch(block)
                block = []
            if self._seconds() >= self.save_at:
                self.save_at = math.inf  # until it is saved
                self.stop.save()
        if block:
            self._fetch(block)
        self.stop.check()

    def _profiled(self, results: Iterator[StepResult]) -> Iterator[StepResult]:
        """The results of some steps; the profile has those in PROFILED, when all is compiled and allocated."""
        if self.profile is None:
            yield from results
            return
        for result in results:
            self.trained += 1
            if self.trained == PROFILED.stop - 1:
                float(result.loss)  # the device has finished
                self.profiling.close()
            yield result
            if self.trained == PROFILED.start - 1:
                float(result.loss)
                self.profiling.enter_context(self.profile())

    def _fetch(self, block: list[tuple[StepResult, float]]) -> None:
        """Bring a block of results from the device: the only place where the host waits for it."""
        rows: list[Row] = []
        traffic: list[Row] = []
        for result, seconds in block:
            loss, grad_norm = float(result.loss), float(result.grad_norm)
            if not math.isfinite(loss):
                self._report(rows, traffic)
                ids = result.batch.ids.tolist()
                raise NonFiniteLoss(f"step {result.batch.step}: the loss is {loss}; training examples {ids}")
            rows.append(self._row(result, loss, grad_norm, seconds))
            if result.traffic is not None:
                traffic.append({"step": self.position.step, **result.traffic})
        rows[-1]["seconds"] = self.position.seconds = self._seconds()  # the device has finished only now
        self._report(rows, traffic)

    def _row(self, result: StepResult, loss: float, grad_norm: float, seconds: float) -> Row:
        """Advance the position by an update. Returns its row of metrics.jsonl."""
        position, batch = self.position, result.batch
        position.step += 1
        position.plan_position = max(position.plan_position, batch.step)
        position.examples += batch.size
        position.tokens += batch.tokens
        position.validation = None
        row: Row = {
            "step": position.step,
            "loss": loss,
            "examples": position.examples,
            "tokens": position.tokens,
            "learning_rate": compute_learning_rate(self.config, batch.step),
            "grad_norm": grad_norm,
            "seconds": seconds,
            "replicas": self.strategy.world_size,
        }
        if result.staleness is not None:
            row |= {"staleness": result.staleness, "worker": result.worker, "batch": batch.step, "part": batch.part}
        return row

    def _report(self, rows: list[Row], traffic: list[Row]) -> None:
        if rows:
            now = self._seconds()
            speed = (self.position.examples - self.shown) / (now - self.since)
            for observer in self.observers:
                observer.record_steps(rows, traffic, speed)
            self.shown, self.since = self.position.examples, now

    def evaluate(self) -> None:
        """Evaluate, report it and see whether it is the best so far."""
        start = self._seconds()
        batches = validation_batches(self.config, self.cache.validation)
        evaluation = self.strategy.evaluate(self.stop.interrupt(batches))
        self.since = self._seconds()
        self._compare_with_best(evaluation)
        row: Row = {
            "step": self.position.step,
            "examples": self.position.examples,
            **self.config.task.values(evaluation.loss, evaluation.metric),
            "count": evaluation.count,
            "duration": self.since - start,
        }
        for observer in self.observers:
            observer.record_evaluation(row)

    def _compare_with_best(self, evaluation: Evaluation) -> None:
        """The same numbers on every rank, so that all of them stop at the same step."""
        stopping, position = self.config.train.early_stopping, self.position
        position.validation = self.config.task.values(evaluation.loss, evaluation.metric)
        value = evaluation.loss if stopping.metric == "loss" else -evaluation.metric
        if position.best is None or value < position.best - stopping.min_delta:
            position.best, position.waited = value, 0
        else:
            position.waited += 1

    def _seconds(self) -> float:
        return time.perf_counter() - self.began


def is_due(config: Config, train_examples: int, plan_position: int, every: int | None) -> bool:
    """Whether what is done every `every` steps, or after each virtual epoch, is due after this global batch."""
    train = config.train
    if train.virtual_epoch_examples is None:
        return every is not None and plan_position > 0 and plan_position % every == 0
    before, now = (
        count_examples_until(train_examples, train.global_batch_size, n) for n in (plan_position - 1, plan_position)
    )
    return now // train.virtual_epoch_examples > before // train.virtual_epoch_examples
