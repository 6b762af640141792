"""The training loop of both sides, which feeds global batches to a strategy and reports the results to observers.

A synchronous strategy makes one update from each global batch, an asynchronous strategy one or several. A position
counts updates as `step` and global batches as `plan_position`; the `step` of a batch is the number of its global batch.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace

from common.config.metrics import get_second_prefix, is_higher_better
from common.config.schedules import PlateauSettings
from common.config.schema import Config
from common.data.batch_plan import count_examples_until
from common.data.batches import GlobalBatch
from common.errors import Interrupted
from common.metrics.output_predictions import split_predictions
from common.metrics.predictions import Predictions
from common.training.evaluation_values import compute_values, fetch_losses, format_values, update_best_value
from common.training.look_ahead import open_batches
from common.training.loop_inputs import LoopInputs
from common.training.observer import Observer
from common.training.planned_batches import validation_batches
from common.training.plateau import update_plateau
from common.training.rows import Row
from common.training.schedule import compute_learning_rate
from common.training.stop import Stop
from common.training.strategy import Evaluation, StepResult, Strategy

PROFILED_UPDATES = range(11, 16)  # counted from 1 in each process; the model is compiled by then

Profile = Callable[[], AbstractContextManager[None]]  # opens a context that writes a trace of its body

log = logging.getLogger("lockstep")


class NonFiniteLossError(RuntimeError):
    """The loss of a step is nan or infinite."""


class Loop:
    """The steps, evaluations and checkpoints of one run. Every rank runs a loop; only rank 0, the chief, has observers.

    Args:
        config: the resolved config.
        strategy: trains and evaluates.
        inputs: the data, and the position after which training starts.
        stop: ends training, or requests a checkpoint, at the same batch on all ranks.
        observers: receive the results.
        profile: opens a context that writes a trace of the PROFILED_UPDATES; None for no trace.
    """

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        inputs: LoopInputs,
        stop: Stop,
        observers: Sequence[Observer] = (),
        profile: Profile | None = None,
    ) -> None:
        self.config, self.strategy, self.stop, self.observers = config, strategy, stop, observers
        self.cache, self.output_layouts, start = inputs.cache, inputs.output_layouts, inputs.start
        self.profile, self.open_profile = profile, ExitStack()
        self.counted_updates = 0  # number of updates of this process so far, counted only if there is a `profile`
        self.position, self.saved_position = replace(start), replace(start)
        self.first_step = start.step + 1
        self.started_at = time.perf_counter() - start.seconds
        # The speed is computed since the last report: the number of examples and the training time at that report.
        self.reported_examples, self.reported_at = start.examples, start.seconds
        self.save_at = self._next_save_time()

    def run(self) -> None:
        """Train on the global batches after the start, up to `train.steps` or an early stop.

        Raise NonFiniteLossError, and Interrupted after a stop that the ranks agreed on, with the last step saved.
        """
        try:
            while True:
                # The evaluation comes first, so that the checkpoint of the same position includes its result.
                if self._is_evaluation_due():
                    self.evaluate()
                if self._is_done() or self._is_due(self.config.train.checkpoint_every) or self.stop.saving:
                    self.save()
                if self._is_done():
                    self._log_early_stop()
                    break
                self.train(self._plan_next_steps())
        except Interrupted:
            self.save()
            raise
        finally:
            self.open_profile.close()

    def _is_done(self) -> bool:
        patience = self.config.train.early_stopping.patience
        stopped_early = patience is not None and self.position.waited >= patience
        return stopped_early or self.position.plan_position >= self.config.train.steps

    def _log_early_stop(self) -> None:
        if self.position.plan_position < self.config.train.steps:
            stopping = self.config.train.early_stopping
            reason = f"train.early_stopping.patience={stopping.patience}: no better validation {stopping.metric}"
            log.info("%s; stopping early", reason)

    def _is_evaluation_due(self) -> bool:
        is_end = self.position.plan_position >= self.config.train.steps
        return self.position.validation is None and (is_end or self._is_due(self.config.train.eval_every))

    def _is_due(self, every: int | None) -> bool:
        return is_due(self.config, len(self.cache.train), self.position.plan_position, every)

    def _plan_next_steps(self) -> range:
        """Return the numbers of the global batches up to the next evaluation, the next checkpoint or the end."""
        train, first, count = self.config.train, self.position.plan_position + 1, len(self.cache.train)
        for last in range(first, train.steps):
            if any(is_due(self.config, count, last, every) for every in (train.eval_every, train.checkpoint_every)):
                return range(first, last + 1)
        return range(first, train.steps + 1)

    def save(self) -> None:
        """Save a checkpoint, unless this position has one."""
        self.stop.saving = False
        if self.position != self.saved_position:
            state = self.strategy.state()
            for observer in self.observers:
                observer.save(state, self.position)
            self.saved_position = replace(self.position)
        self.save_at = self._next_save_time()

    def _next_save_time(self) -> float:
        """Return the training time, in seconds, at which `train.checkpoint_seconds` will have passed.

        Ranks other than the chief return infinity, since the chief's clock decides for all ranks.
        """
        seconds = self.config.train.checkpoint_seconds
        return self._seconds() + seconds if seconds is not None and self.strategy.is_chief else math.inf

    def train(self, steps: range) -> None:
        """Train on the global batches of these numbers and report the updates that they make."""
        with open_batches(self.config, self.cache.train, steps) as batches:
            self._train_on(batches)

    def _train_on(self, batches: Iterator[GlobalBatch]) -> None:
        train = self.config.train
        block: list[tuple[StepResult, float]] = []  # results that are not fetched yet, with their training times
        for result in self._profiled(self.strategy.train(self.stop.yield_until_stop(batches))):
            block.append((result, self._seconds()))
            step = self.position.step + len(block)
            if step % train.log_every == 0 or step == self.first_step:  # a first sign that training runs
                self._fetch_and_report(block)
                block = []
            if self._seconds() >= self.save_at:
                self.save_at = math.inf  # `save` sets the next time
                self.stop.save()
        if block:
            self._fetch_and_report(block)
        self.stop.check()

    def _profiled(self, results: Iterator[StepResult]) -> Iterator[StepResult]:
        """Yield the results, and profile the PROFILED_UPDATES. A trace begins and ends while the device is idle."""
        if self.profile is None:
            yield from results
            return
        for result in results:
            self.counted_updates += 1
            if self.counted_updates == PROFILED_UPDATES.stop - 1:
                float(result.grad_norm)  # waits until the device has finished the last profiled update
                self.open_profile.close()
            yield result
            if self.counted_updates == PROFILED_UPDATES.start - 1:
                float(result.grad_norm)  # waits until the device has finished the update before
                self.open_profile.enter_context(self.profile())

    def _fetch_and_report(self, block: list[tuple[StepResult, float]]) -> None:
        """Fetch a block of results from the device and report them. Only here the host waits for the device.

        Raise NonFiniteLossError, after the updates before it are reported.
        """
        rows: list[Row] = []
        traffic: list[Row] = []
        summed_losses = self.strategy.sum_losses([result for result, _ in block])
        for (result, seconds), loss in zip(block, summed_losses, strict=True):
            losses, grad_norm = fetch_losses(self.config.task, loss), float(result.grad_norm)
            if not math.isfinite(losses["loss"]):
                self._report(rows, traffic)
                reason = f"the loss is {losses['loss']}; training examples {result.batch.ids.tolist()}"
                raise NonFiniteLossError(f"step {result.batch.step}: {reason}")
            rows.append(self._advance(result, losses, grad_norm, seconds))
            if result.traffic is not None:
                traffic.append({"step": self.position.step, **result.traffic})
        rows[-1]["seconds"] = self.position.seconds = self._seconds()  # the device has finished only now
        self._report(rows, traffic)

    def _advance(self, result: StepResult, losses: Row, grad_norm: float, seconds: float) -> Row:
        """Advance the position by one update, and return the update's row of metrics.jsonl."""
        position, batch = self.position, result.batch
        position.step += 1
        position.plan_position = max(position.plan_position, batch.step)
        position.examples += batch.size
        position.tokens += batch.tokens
        position.validation = None  # this position is not evaluated yet
        row: Row = {
            "step": position.step,
            **losses,
            "examples": position.examples,
            "tokens": position.tokens,
            "learning_rate": compute_learning_rate(self.config, batch.step) * position.plateau_factor,
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
        start, train = self._seconds(), self.config.train
        values, evaluation, predictions = self._evaluate_weights(train.evaluate_average)
        second_values: Row = {}
        if train.evaluate_both:
            second, prefix = self._evaluate_weights(not train.evaluate_average)[0], get_second_prefix(self.config)
            second_values = {f"{prefix}{name}": value for name, value in format_values(second).items()}
        if self.strategy.is_chief and not math.isfinite(values["loss"]):
            log.warning("step %d: the validation loss is %s", self.position.step, values["loss"])
        if train.predictions and predictions:
            for observer in self.observers:
                observer.record_predictions(self.position.step, predictions)
        self.reported_at = self._seconds()
        update_best_value(self.config, self.position, values)
        self._follow_plateau(values)
        row: Row = {
            "step": self.position.step,
            "examples": self.position.examples,
            **format_values(values),
            **second_values,
            "count": evaluation.count,
            "duration": self.reported_at - start,
        }
        for observer in self.observers:
            observer.record_evaluation(row)

    def _evaluate_weights(self, averaged: bool) -> tuple[dict[str, float], Evaluation, dict[str, Predictions]]:
        """Return the values of the weights or of their average, the evaluation, and the predictions by output."""
        batches = validation_batches(self.config, self.cache.validation)
        with self.strategy.averaged_weights() if averaged else nullcontext():
            evaluation = self.strategy.evaluate(self.stop.yield_or_interrupt(batches))
        predictions = split_predictions(evaluation.predictions, self.config.task, self.output_layouts)
        return compute_values(self.config, self.strategy, evaluation, predictions), evaluation, predictions

    def _follow_plateau(self, values: dict[str, float]) -> None:
        """Lower the learning rate of all ranks if schedule=plateau requires it after this evaluation.

        The evaluation at the end of a run counts only if `eval_every` makes it due, so that a longer run counts the
        same evaluations.
        """
        schedule, position = self.config.schedule, self.position
        if not isinstance(schedule, PlateauSettings) or not self._is_due(self.config.train.eval_every):
            return
        previous_factor, higher_is_better = position.plateau_factor, is_higher_better(self.config, schedule.metric)
        position.plateau = update_plateau(schedule, position.plateau, values[schedule.metric], higher_is_better)
        if position.plateau_factor != previous_factor:
            log.info(
                "schedule=plateau: no better validation %s; learning rate %g after step %d",
                schedule.metric,
                compute_learning_rate(self.config, position.plan_position + 1) * position.plateau_factor,
                position.step,
            )
            self.strategy.set_plateau_factor(position.plateau_factor)

    def _seconds(self) -> float:
        """Return the training time until now, including the runs from which this run was resumed."""
        return time.perf_counter() - self.started_at


def is_due(config: Config, train_examples: int, plan_position: int, every: int | None) -> bool:
    """Check whether an action is due after global batch number `plan_position`.

    The action is due every `every` global batches; None is never. With `train.virtual_epoch_examples`, the action is
    due instead whenever that number of examples, a virtual epoch, has been trained on.
    """
    train = config.train
    if train.virtual_epoch_examples is None:
        return every is not None and plan_position > 0 and plan_position % every == 0
    before, now = (
        count_examples_until(train_examples, train.global_batch_size, n) for n in (plan_position - 1, plan_position)
    )
    return now // train.virtual_epoch_examples > before // train.virtual_epoch_examples
