"""The training loop of both sides: it feeds batches to a strategy, and reports the results to observers."""

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


class NonFiniteLossError(RuntimeError):
    """The loss of a step is nan or infinite."""


class Loop:
    """The steps, evaluations and checkpoints of one run. Every rank runs a loop; only the chief has observers.

    Args:
        config: the resolved config.
        strategy: trains and evaluates.
        cache: the training and validation examples.
        start: the position after which training starts.
        stop: ends training, or requests a checkpoint, at the same batch on all ranks.
        observers: receive the results.
        profile: a context manager that writes a trace of the steps in PROFILED; None for no trace.
    """

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
        self.profiled_steps = 0  # updates of this process, counted if they are profiled
        self.position, self.saved = replace(start), replace(start)
        self.first = start.step + 1
        self.started_at = time.perf_counter() - start.seconds
        self.reported_examples, self.reported_at = start.examples, start.seconds  # at the last report, in seconds
        self.save_at = self._next_save()

    def run(self) -> None:
        """Train on the global batches after the start, up to `train.steps` or an early stop.

        Raises NonFiniteLossError, and Interrupted after a stop that the ranks agreed on, with the last step saved.
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
        """Save a checkpoint, unless this position has one."""
        self.stop.saving = False
        if self.position != self.saved:
            state = self.strategy.state()
            for observer in self.observers:
                observer.save(state, self.position)
            self.saved = replace(self.position)
        self.save_at = self._next_save()

    def _next_save(self) -> float:
        """Return when `train.checkpoint_seconds` will have passed. The chief decides by its clock for all ranks."""
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
        """Yield the results, and profile the steps in PROFILED: the model is compiled by then."""
        if self.profile is None:
            yield from results
            return
        for result in results:
            self.profiled_steps += 1
            if self.profiled_steps == PROFILED.stop - 1:
                float(result.loss)  # the device has finished
                self.profiling.close()
            yield result
            if self.profiled_steps == PROFILED.start - 1:
                float(result.loss)
                self.profiling.enter_context(self.profile())

    def _fetch(self, block: list[tuple[StepResult, float]]) -> None:
        """Fetch a block of results from the device. Only here the host waits for the device."""
        rows: list[Row] = []
        traffic: list[Row] = []
        for result, seconds in block:
            loss, grad_norm = float(result.loss), float(result.grad_norm)
            if not math.isfinite(loss):
                self._report(rows, traffic)
                ids = result.batch.ids.tolist()
                raise NonFiniteLossError(f"step {result.batch.step}: the loss is {loss}; training examples {ids}")
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
            speed = (self.position.examples - self.reported_examples) / (now - self.reported_at)
            for observer in self.observers:
                observer.record_steps(rows, traffic, speed)
            self.reported_examples, self.reported_at = self.position.examples, now

    def evaluate(self) -> None:
        """Evaluate, report the result and compare it with the best so far."""
        start = self._seconds()
        batches = validation_batches(self.config, self.cache.validation)
        evaluation = self.strategy.evaluate(self.stop.interrupt(batches))
        self.reported_at = self._seconds()
        self._compare_with_best(evaluation)
        row: Row = {
            "step": self.position.step,
            "examples": self.position.examples,
            **self.config.task.values(evaluation.loss, evaluation.metric),
            "count": evaluation.count,
            "duration": self.reported_at - start,
        }
        for observer in self.observers:
            observer.record_evaluation(row)

    def _compare_with_best(self, evaluation: Evaluation) -> None:
        """Update the best value. All ranks have the same numbers, so they stop early at the same step."""
        stopping, position = self.config.train.early_stopping, self.position
        position.validation = self.config.task.values(evaluation.loss, evaluation.metric)
        value = evaluation.loss if stopping.metric == "loss" else -evaluation.metric
        if position.best is None or value < position.best - stopping.min_delta:
            position.best, position.waited = value, 0
        else:
            position.waited += 1

    def _seconds(self) -> float:
        return time.perf_counter() - self.started_at


def is_due(config: Config, train_examples: int, plan_position: int, every: int | None) -> bool:
    """Check whether an action is due after this global batch: every `every` steps, or after each virtual epoch."""
    train = config.train
    if train.virtual_epoch_examples is None:
        return every is not None and plan_position > 0 and plan_position % every == 0
    before, now = (
        count_examples_until(train_examples, train.global_batch_size, n) for n in (plan_position - 1, plan_position)
    )
    return now // train.virtual_epoch_examples > before // train.virtual_epoch_examples
