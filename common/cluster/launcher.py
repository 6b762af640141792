"""A run from both ends: what the command that starts it does around its processes, and what one process of it does."""

import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.cluster.peer_monitor import Lifeline
from common.cluster.processes import FAILURE, RESTARTS, USER_ERROR, Stop
from common.cluster.supervisor import Outcome, Process, supervise
from common.cluster.topology import is_chief
from common.config.schema import Config
from common.errors import Interrupted, UserError
from common.export import export
from common.models.initial_weights import InitialCheckpoint
from common.run.checkpoint import Checkpoints, Position
from common.run.directory import Recorder, facts, write_summary, write_whole
from common.run.progress import closing_table, log_to
from common.run.resume import find_start
from common.training import loop

log = logging.getLogger("lockstep")

PROCESSES = "processes.json"  # the ids of a run's processes on this machine, by name


def start(config: Config, framework: str, processes: list[Process]) -> int:
    """Run this machine's processes of a run to their end. Returns its exit code.

    The first is the chief, but on the hosts after the first, where all write to train.log alone. Writes the summary if
    the chief could not.
    """
    assert config.run_dir is not None
    run_dir = Path(config.run_dir)
    lifeline = Lifeline(config)
    for restarts in range(config.train.max_restarts + 1):
        attempt = [replace(each, environment={**each.environment, RESTARTS: str(restarts)}) for each in processes]
        outcome = supervise(
            attempt,
            run_dir / "train.log",
            not config.cluster.node,
            lambda: lifeline.lost,
            lambda pids: write_whole(run_dir / PROCESSES, json.dumps(pids, indent=1) + "\n"),
            config.cluster.timeout / 2,  # before the others give up waiting, so that it is named
        )
        if outcome.exit_code != FAILURE or restarts == config.train.max_restarts:
            break
        log.warning("%s; starting again from the newest checkpoint", outcome.problem)
        (run_dir / "summary.json").unlink(missing_ok=True)
    if config.cluster.node and outcome.exit_code == 0:
        lifeline.wait()
        if lifeline.lost:
            outcome = Outcome(FAILURE, lifeline.lost)
    lifeline.release(outcome.exit_code == 0)
    status = "interrupted" if outcome.exit_code > 128 else "failed"
    if config.cluster.node:
        if outcome.problem:
            said = (run_dir / "train.log").read_text().splitlines()
            errors = [line for line in said if line.startswith("error: ")]  # what a user can mend
            print(*errors[-1:] or [f"{status}: {outcome.problem}; see {run_dir / 'train.log'}"], file=sys.stderr)
    elif not (run_dir / "summary.json").exists():
        write_summary(run_dir, facts(config, framework, {}), status, {}, outcome.problem)
        print(f"{status}: {outcome.problem}; see {run_dir / 'train.log'}", file=sys.stderr)
    elif outcome.problem and not outcome.problem.startswith(f"{processes[0].name} ") and outcome.exit_code == 1:
        print(f"failed: {outcome.problem}", file=sys.stderr)  # the chief has said what it knows: not that a rank fell
    return outcome.exit_code


def work(config: Config, framework: str, make_strategy: Callable[[Config, InitialCheckpoint], loop.Strategy]) -> int:
    """One process of a run: train, and in the chief record. Returns its exit code."""
    stop = Stop()
    cache, initial, checkpoint = find_start(config)
    start = checkpoint.position if checkpoint else Position()
    try:
        strategy = make_strategy(config, initial)
        if checkpoint is not None:
            strategy.load(checkpoint)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        if is_chief(framework, os.environ):
            assert config.run_dir is not None
            write_summary(Path(config.run_dir), facts(config, framework, {}), "failed", {}, str(error))
        return USER_ERROR
    stop.listen()  # TensorFlow's collectives have taken SIGTERM
    if not strategy.is_chief:
        try:
            loop.run(config, strategy, cache, None, None, stop, start)
        except Interrupted as interruption:
            return interruption.exit_code
        return 0
    assert config.run_dir is not None
    run_dir = Path(config.run_dir)
    log_to(run_dir)
    about = facts(config, framework, {"token_cache": cache.fingerprint, "initial_weights": initial.fingerprint})
    log.info("%s; classes %s", cache, ", ".join(cache.classes))
    recorder, checkpoints = Recorder(run_dir, start), Checkpoints(config, run_dir, initial)
    status, exit_code, problem = "failed", FAILURE, None
    report: dict[str, Any] = {"resumed_from": start.step}
    try:
        report |= loop.run(config, strategy, cache, recorder, checkpoints, stop, start)
        shutil.rmtree(run_dir / "model", ignore_errors=True)
        export(run_dir, run_dir / "model", of_best=False)  # the checkpoint of the last step
        status, exit_code = "completed", 0
    except Interrupted as interruption:
        status, exit_code, problem = "interrupted", interruption.exit_code, str(interruption)
    except (loop.NonFiniteLoss, UserError) as error:
        problem = str(error)
    except Exception as error:
        said = [line for line in str(error).splitlines() if not line.startswith(" ")]  # but for stack frames
        problem = f"{type(error).__name__}: {' '.join(' '.join(said).split())[:300]}"
        with suppress(OSError), (run_dir / "train.log").open("a") as file:
            traceback.print_exc(file=file)
    finally:
        checkpoints.close()
        recorder.close()
        summary = write_summary(run_dir, about, status, report, problem)
    closing_table(run_dir, summary)
    if problem:
        print(f"{status}: {problem}; see {run_dir / 'train.log'}", file=sys.stderr)
    return exit_code
