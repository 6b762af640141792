"""One process of a run: it joins its group and trains; the chief records."""

import logging
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from common.config.schema import Config
from common.errors import FAILURE, USER_ERROR, Interrupted, UserError
from common.run.checkpoint_writer import CheckpointWriter
from common.run.directory import profile_path
from common.run.export import export
from common.run.prepare import Prepared
from common.run.progress import TrainingProgress, log_to
from common.run.summary import facts, write_running, write_summary
from common.training.loop import Loop, NonFiniteLoss
from common.training.stop import Stop
from common.training.strategy import Strategy

log = logging.getLogger("lockstep")

WAIT_SECONDS = 9.0  # for the chief to save the checkpoint of an agreed stop


class StopChannel(Protocol):
    """What connects the ranks' stops: see common.cluster.stop_channel."""

    def attach(self, stop: Stop) -> None:
        """Leave this rank's decisions to the channel."""

    def wait(self, seconds: float) -> bool:
        """Wait until the chief has closed the channel. Returns whether it has."""

    def close(self) -> None:
        """Leave the channel."""


class Group(Protocol):
    """The ranks of a run, as one of them sees it. channel: over which they agree on a stop; None for a group of one."""

    @property
    def rank(self) -> int: ...

    @property
    def channel(self) -> StopChannel | None: ...


Profiled = Callable[[], AbstractContextManager[None]] | None
AnyGroup = TypeVar("AnyGroup", bound=Group)


def work(
    config: Config,
    prepared: Prepared,
    framework: str,
    chief_dir: Path | None,
    join_group: Callable[[Config, Prepared], AnyGroup],
    make_strategy: Callable[[Config, Prepared, AnyGroup], Strategy],
    profile: Callable[[Path], AbstractContextManager[None]],
    compilations: Callable[[], dict[str, Any]],
) -> int:
    """Train as one rank. Returns the exit code of this process.

    chief_dir: the run directory, in the process that is the chief; None in the others. profile: writes a trace of its
    body to a path. compilations: what summary.json says of them.
    """
    stop = Stop()
    try:
        group = join_group(config, prepared)
        if group.channel is not None:
            group.channel.attach(stop)
        strategy = make_strategy(config, prepared, group)
        if prepared.checkpoint is not None:
            strategy.load(prepared.checkpoint)
    except UserError as error:
        if chief_dir is None or error.exit_code == USER_ERROR:  # the command reports the chief's failures
            print(f"error: {error}", file=sys.stderr)
        if chief_dir is not None:
            write_summary(chief_dir, config, facts(config, framework, {}), "failed", {}, str(error))
        return error.exit_code
    stop.listen()  # TensorFlow's collectives have taken SIGTERM
    try:
        profiled: Profiled = None
        if config.train.profile and config.run_dir is not None:
            profiled = partial(profile, profile_path(Path(config.run_dir), group.rank))
        if chief_dir is not None:
            return _record(config, prepared, framework, strategy, stop, profiled, compilations, chief_dir)
        Loop(config, strategy, prepared.cache, prepared.start, stop, profile=profiled).run()
        strategy.report()
        return 0
    except Interrupted as interruption:
        if group.channel is not None:
            group.channel.wait(WAIT_SECONDS)
        return interruption.exit_code
    finally:
        if group.channel is not None:
            group.channel.close()


def _record(
    config: Config,
    prepared: Prepared,
    framework: str,
    strategy: Strategy,
    stop: Stop,
    profiled: Profiled,
    compilations: Callable[[], dict[str, Any]],
    run_dir: Path,
) -> int:
    """Train as the chief: with checkpoints, rows and a summary, however it ends. Returns the exit code.

    The command prints the summary, so that how a run ended is said even where this process was killed.
    """
    from common.run.recorder import Recorder  # TensorBoard's writer, which no other process needs
    from common.run.trackers import Trackers

    log_to(run_dir)
    cache, start = prepared.cache, prepared.start
    about = facts(
        config, framework, {"token_cache": cache.fingerprint, "initial_weights": prepared.initial.fingerprint}
    )
    if prepared.initial.batch_norm:
        about["batch_norm"] = "global" if config.model.global_batch_norm else "replica"
    log.info("%s%s", cache, f"; classes {', '.join(cache.classes)}" if cache.classes else "")
    recorder, checkpoints = (
        Recorder(run_dir, start, f"{framework} {config.strategy.kind}"),
        CheckpointWriter(config, run_dir, prepared),
    )
    updates = (config.train.steps - start.plan_position) * config.strategy.updates_per_batch
    if config.strategy.updates_per_batch > 1:
        log.info(
            "%d global batches make %d updates, one for each worker's part of a batch (strategy.batch=replica)",
            *(config.train.steps, start.step + updates),
        )
    title = f"{config.strategy.kind} x{strategy.world_size}"
    progress = TrainingProgress(title, start.step + updates, config.train.log_every)
    trackers = Trackers(config, run_dir)
    status, exit_code, problem = "failed", FAILURE, None
    report: dict[str, Any] = {"resumed_from": start.step}
    try:
        write_running(run_dir, about)
        try:
            Loop(config, strategy, cache, start, stop, (recorder, checkpoints, progress, trackers), profiled).run()
            report |= strategy.report()
            if config.train.compile:
                report |= compilations()
        finally:
            progress.close()
            checkpoints.finish()
        shutil.rmtree(run_dir / "model", ignore_errors=True)
        export(run_dir, run_dir / "model", of_best=False)  # the checkpoint of the last step
        status, exit_code = "completed", 0
    except Interrupted as interruption:
        status, exit_code, problem = "interrupted", interruption.exit_code, str(interruption)
    except (NonFiniteLoss, UserError) as error:
        problem = str(error)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if not line.startswith(" ")]  # without stack frames
        problem = f"{type(error).__name__}: {' '.join(' '.join(lines).split())[:300]}"
        with suppress(OSError), (run_dir / "train.log").open("a") as file:
            traceback.print_exc(file=file)
    finally:
        checkpoints.close()
        recorder.close()
        write_summary(run_dir, config, about, status, report, problem)
        trackers.close(status)
    if problem and not (run_dir / "summary.json").exists():  # the disk is full
        print(f"{status}: {problem}", file=sys.stderr)
    return exit_code
