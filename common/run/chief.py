"""The chief of a run (rank 0), which trains like every rank and writes the run directory."""

import logging
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.errors import FAILURE, Interrupted, UserError, describe_error, report_write_errors
from common.records.summary import RunFacts
from common.run.checkpoint_writer import CheckpointWriter
from common.run.context import RunContext
from common.run.environment_history import EnvironmentStretch, extend_history, list_changes
from common.run.export import export_model
from common.run.predictions_writer import PredictionsWriter
from common.run.progress import TrainingProgress, log_to
from common.run.summary import describe_run, write_running, write_summary
from common.training.loop import Loop, NonFiniteLossError, Profile
from common.training.observer import Observer
from common.training.stop import Stop
from common.training.strategy import Strategy

log = logging.getLogger("lockstep")


@dataclass(frozen=True)
class Ending:
    """The end of a run: the status and the error that summary.json reports, and the exit code of the chief.

    The status is "completed", "interrupted" or "failed".
    """

    status: str
    exit_code: int
    error: str | None = None


class RunRecord:
    """The files, displays and trackers that the chief updates while it trains."""

    def __init__(self, context: RunContext, replicas: int, environments: Sequence[EnvironmentStretch]) -> None:
        from common.run.recorder import Recorder  # imports TensorBoard's writer, which no other process needs
        from common.run.trackers import Trackers

        config, start = context.config, context.inputs.start
        strategy = config.strategy
        # A global batch makes several updates if each worker updates the parameters with its own part of it.
        updates = start.step + (config.train.steps - start.plan_position) * strategy.updates_per_batch
        if strategy.updates_per_batch > 1:
            log.info(
                "%d global batches make %d updates, one for each worker's part of a batch (strategy.batch=replica)",
                *(config.train.steps, updates),
            )
        self.recorder = Recorder(context.run_dir, start, f"{context.framework} {strategy.kind}")
        self.predictions = PredictionsWriter(context.run_dir, start)
        self.checkpoints = CheckpointWriter(context, environments)
        self.progress = TrainingProgress(f"{strategy.kind} x{replicas}", updates, config.train.log_every)
        self.trackers = Trackers(config, context.run_dir)

    @property
    def observers(self) -> list[Observer]:
        """Return the observers of the training loop."""
        return [self.recorder, self.predictions, self.checkpoints, self.progress, self.trackers]

    def finish(self) -> None:
        """Release the terminal, and wait for the last checkpoint. Raise UserError if it could not be written."""
        self.progress.close()
        self.checkpoints.finish()

    def close_files(self) -> None:
        """Close the files of the run, whether training completed or not."""
        self.checkpoints.close()
        self.recorder.close()


def train_as_chief(
    context: RunContext,
    strategy: Strategy,
    stop: Stop,
    profile: Profile | None,
    count_compilations: Callable[[], Mapping[str, float]],
    environment: dict[str, object],
) -> int:
    """Train, and record checkpoints, rows and a summary, however training ends. Return the exit code.

    The command that started this process prints the summary, so that the end of the run is reported even if this
    process is killed.

    Args:
        context: the context of the run.
        strategy: the strategy, loaded with the checkpoint if the run resumes from one.
        stop: ends training at the same step on all ranks.
        profile: opens a context that writes a trace of its body; None for no trace.
        count_compilations: returns the fields of summary.json about compilation.
        environment: the field `environment` of summary.json.

    Raises:
        UserError: a file of the run cannot be opened, or a row that it continues is damaged. No step was trained.
    """
    cache, start = context.inputs.cache, context.inputs.start
    facts = describe_run(context)
    facts["environment"] = environment
    checkpoint = context.inputs.checkpoint
    environments = extend_history(checkpoint.environments if checkpoint else [], facts, start.step + 1)
    if changes := list_changes(environments):
        facts["environment_changed"] = changes
    with report_write_errors(context.run_dir):
        log_to(context.run_dir)
        if changes and changes[-1]["step"] == start.step + 1:
            log.warning(
                "another environment trains from step %d: %s", start.step + 1, ", ".join(changes[-1]["changes"])
            )
        log.info("%s%s", cache, f"; classes {', '.join(cache.classes)}" if cache.classes else "")
        record = RunRecord(context, strategy.world_size, environments)
    report: dict[str, object] = {"resumed_from": start.step}
    ending = Ending("failed", FAILURE)
    try:
        write_running(context.run_dir, facts)
        try:
            Loop(context.config, strategy, context.inputs, stop, record.observers, profile).run()
            report |= strategy.report()
            if context.config.train.compile:
                report |= count_compilations()
        finally:
            record.finish()
        _export_model(context)
        ending = Ending("completed", 0)
    except Interrupted as interruption:
        ending = Ending("interrupted", interruption.exit_code, str(interruption))
    except Exception as error:
        ending = _describe_ending(error, context)
    finally:
        record.close_files()
        ending = _write_end(context, facts, report, ending)
        record.trackers.close(ending.status)
    return ending.exit_code


def _export_model(context: RunContext) -> None:
    """Replace the model directory of the run by the model of the last step."""
    shutil.rmtree(context.run_dir / "model", ignore_errors=True)
    export_model(context.run_dir, context.run_dir / "model", use_best=False, use_average=False)


def _describe_ending(error: Exception, context: RunContext) -> Ending:
    """Return the ending for an error, and write the stack trace of an unexpected error to train.log."""
    if isinstance(error, NonFiniteLossError | UserError):
        return Ending("failed", FAILURE, str(error))
    log_stack_trace(context.run_dir, error)
    return Ending("failed", FAILURE, describe_error(error))


def log_stack_trace(run_dir: Path, error: Exception, last_line: str = "") -> None:
    """Write the stack trace of an unexpected error to train.log, unless the disk is full."""
    with suppress(OSError), (run_dir / "train.log").open("a") as file:
        traceback.print_exception(error, file=file)
        if last_line:
            print(last_line, file=file)


def _write_end(context: RunContext, facts: RunFacts, report: Mapping[str, object], ending: Ending) -> Ending:
    """Write summary.json, and return the ending. If summary.json cannot be written, the run has failed.

    The command then cannot read the error from summary.json, so this process prints it.
    """
    try:
        write_summary(context.run_dir, context.config, facts, ending.status, report, ending.error)
        return ending
    except UserError as error:
        ending = ending if ending.error else Ending("failed", FAILURE, str(error))
        print(f"{ending.status}: {ending.error}", file=sys.stderr)
        return ending
