"""Start a run on this machine again after a crash, until an attempt succeeds or none may follow.

An attempt is one start of all processes of a run, on all hosts together. After a crash another attempt may follow, from
the newest checkpoint. Host 0 is the first host, which has the chief and decides for the other hosts.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from common.cluster.checkpoint_transfer import CheckpointTransfer
from common.cluster.peer_monitor import PeerMonitor
from common.cluster.processes import RUN_TOKEN
from common.cluster.supervisor import Outcome, PeerStatus, Process, supervise
from common.cluster.topology import HostGroup
from common.config.models import find_library
from common.errors import FAILURE, USER_ERROR, Interrupted, PeerTimeout, UserError, report_write_errors
from common.interpreter import NoAnswerError, check_import
from common.records.summary import SUMMARY_FILE
from common.run.context import RunContext
from common.run.files import replace_text
from common.run.prepare import prepare_restart
from common.run.progress import FAILED_START, point_to_log, report_end
from common.run.summary import RESTARTS_VARIABLE, count_restarts, write_aborted_summary
from common.training.stop import Stop

log = logging.getLogger("lockstep")

USER_ERROR_START = "error: "  # start of the line with a mistake that a user can fix
PROCESSES = "processes.json"  # file in the run directory: the ids of the run's processes on this machine, by name


def start(context: RunContext, hosts: HostGroup, processes: list[Process]) -> int:
    """Run this machine's processes of a run to their end. Return the exit code of the command.

    On the first host, the first process is the chief and writes to the terminal. On other hosts all processes write
    only to train.log. The launcher writes the summary if the chief has not.

    Args:
        context: the context of the run, whose inputs are prepared.
        hosts: the hosts of the run, and which of them is this machine.
        processes: the processes to start on this machine.

    Raises:
        PeerTimeout: the commands of other hosts do not arrive.
        UserError: a checkpoint cannot be written or read.
        Interrupted: a signal has stopped the preparation.
    """
    monitor = PeerMonitor(hosts, context.config.strategy.processes, CheckpointTransfer(context, hosts.host_index))
    try:
        outcome = _run_attempts(context, hosts, processes, monitor)
    except (UserError, Interrupted) as error:
        monitor.close(error.exit_code)
        if not hosts.host_index and isinstance(error, UserError):
            write_aborted_summary(context.run_dir, context.config, context.framework, "failed", str(error))
        raise
    stop = Stop()  # another signal must not replace the outcome while it is recorded
    monitor.close(outcome.exit_code)
    _report(context, hosts, processes[0].name, outcome)
    stop.restore()
    return outcome.exit_code


def _run_attempts(context: RunContext, hosts: HostGroup, processes: list[Process], monitor: PeerMonitor) -> Outcome:
    """Run one attempt after another, on all hosts together, until one succeeds or none may follow."""
    config, attempt = context.config, count_restarts()  # above 0 if common.cluster.ray_driver restarted this command
    last_attempt, outcome = attempt + config.train.max_restarts, None
    while True:
        if outcome and not hosts.host_index:
            prepare_restart(context)
        try:
            attempt = monitor.begin_attempt(attempt, config.cluster.timeout)
        except PeerTimeout as error:
            if outcome is None:
                raise
            return Outcome(FAILURE, f"{outcome.problem}; {error}")
        (context.run_dir / SUMMARY_FILE).unlink(missing_ok=True)
        outcome = _find_peer_outcome(monitor) or _run_attempt(context, hosts, processes, monitor, attempt)
        if outcome.exit_code == FAILURE:
            _check_import(context)
        # The first host counts the restarts for all hosts.
        is_last = not config.train.max_restarts or (attempt == last_attempt and not hosts.host_index)
        if outcome.exit_code != FAILURE or monitor.is_final or is_last:
            return outcome
        log.warning("%s; restarting from the newest checkpoint", outcome.problem)
        attempt += 1
        monitor.announce_next_attempt(attempt)


def _check_import(context: RunContext) -> None:
    """Raise UserError if a run failed before its first step because its interpreter cannot import the framework."""
    config, framework = context.config, context.framework
    if config.python is None or (context.run_dir / "metrics.jsonl").exists():
        return
    with suppress(NoAnswerError):  # the failure itself says more
        check_import("python", config.python, framework, find_library(config.model, framework))


def _run_attempt(
    context: RunContext, hosts: HostGroup, processes: list[Process], monitor: PeerMonitor, attempt: int
) -> Outcome:
    """Run this machine's processes once. The chief's end decides the outcome of every host."""
    variables = {RESTARTS_VARIABLE: str(attempt), RUN_TOKEN: monitor.token}
    outcome = supervise(
        [replace(process, environment={**process.environment, **variables}) for process in processes],
        context.run_dir / "train.log",
        chief_inherits_stdio=not hosts.host_index,  # only the first host has the chief
        peers=PeerStatus(lambda: monitor.error, lambda: monitor.stop_signal),
        on_started=lambda pids: _record_processes(context.run_dir / PROCESSES, pids),
        # This limit is lower than the time for which other processes wait, so the error names the suspended process.
        max_suspended_seconds=context.config.cluster.timeout / 2,
    )
    if hosts.host_index and outcome.exit_code == 0:
        monitor.wait_for_leader()
        return _find_peer_outcome(monitor) or outcome
    return outcome


def _record_processes(path: Path, pids: Mapping[str, int]) -> None:
    with report_write_errors(path):
        replace_text(path, json.dumps(pids, indent=1) + "\n")


def _find_peer_outcome(monitor: PeerMonitor) -> Outcome | None:
    """Return the outcome of the attempt on another host if it failed or was stopped there, otherwise None."""
    if monitor.error:
        return Outcome(FAILURE, monitor.error)
    if monitor.exit_code:
        return Outcome(monitor.exit_code, "another host's command was stopped")
    return None


def _find_line(run_dir: Path, prefix: str) -> str:
    """Return the last line of train.log that starts with the prefix; empty if there is none."""
    log_file = run_dir / "train.log"  # missing if no attempt has begun
    lines = log_file.read_text(errors="replace").splitlines() if log_file.exists() else []
    return next((line for line in reversed(lines) if line.startswith(prefix)), "")


def _report(context: RunContext, hosts: HostGroup, chief: str, outcome: Outcome) -> None:
    """Print and record the outcome of the run, unless the chief has already printed and recorded it.

    chief: the name of the chief's process.
    """
    run_dir, status = context.run_dir, "interrupted" if outcome.exit_code > 128 else "failed"
    if hosts.host_index:
        if outcome.problem:
            end = f"{status}: {outcome.problem}{point_to_log(run_dir)}"
            print(_find_line(run_dir, USER_ERROR_START) or end, file=sys.stderr)
        return
    has_summary = (run_dir / SUMMARY_FILE).exists()  # the chief has written it
    if not has_summary:
        problem = outcome.problem  # begins with the name of the process if it failed here
        is_chief_problem = problem is not None and problem.startswith(f"{chief} ")
        if outcome.exit_code == USER_ERROR and problem and not is_chief_problem:
            error = _find_line(run_dir, USER_ERROR_START) or f"{status}: {problem}{point_to_log(run_dir)}"
            print(error, file=sys.stderr)
            problem = error.removeprefix(USER_ERROR_START)
        elif status == "failed" and is_chief_problem:
            problem = _find_line(run_dir, FAILED_START).removeprefix(FAILED_START) or problem
        write_aborted_summary(run_dir, context.config, context.framework, status, problem)
    report_end(run_dir, outcome.exit_code)
    if has_summary and outcome.problem and not outcome.problem.startswith(f"{chief} ") and outcome.exit_code == FAILURE:
        print(f"failed: {outcome.problem}", file=sys.stderr)  # the chief does not know which rank crashed
