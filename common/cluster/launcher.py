"""The launcher: what the command that starts a run does around this machine's processes."""

import json
import logging
import sys
from dataclasses import replace

from common.cluster.checkpoint_transfer import CheckpointTransfer
from common.cluster.peer_monitor import PeerMonitor
from common.cluster.supervisor import Outcome, Peers, Process, supervise
from common.cluster.topology import HostGroup
from common.errors import FAILURE, Interrupted, PeerTimeout, UserError
from common.run.context import RunContext
from common.run.prepare import prepare_restart
from common.run.progress import report_end, see_log
from common.run.rows import replace_text
from common.run.summary import RESTARTS, restarts, write_aborted_summary
from common.training.stop import Stop

log = logging.getLogger("lockstep")

PROCESSES = "processes.json"  # the ids of a run's processes on this machine, by name


def start(context: RunContext, nodes: HostGroup, processes: list[Process]) -> int:
    """Run this machine's processes of a run to their end. Returns the exit code of the command.

    The first is the chief, but on the hosts after the first, where all write to train.log alone. Writes the summary if
    the chief could not. Raises PeerTimeout if the commands of other hosts do not arrive, UserError if a checkpoint
    cannot be written or read, and Interrupted.
    """
    monitor = PeerMonitor(nodes, context.config.strategy.processes, CheckpointTransfer(context, nodes.host_index))
    try:
        outcome = _run(context, nodes, processes, monitor)
    except (UserError, Interrupted) as error:
        monitor.close(error.exit_code)
        if not nodes.host_index and isinstance(error, UserError):
            write_aborted_summary(context.run_dir, context.config, context.framework, "failed", str(error))
        raise
    stop = Stop()  # another signal must not replace what is recorded now
    monitor.close(outcome.exit_code)
    _report(context, nodes, processes[0].name, outcome)
    stop.restore()
    return outcome.exit_code


def _run(context: RunContext, nodes: HostGroup, processes: list[Process], monitor: PeerMonitor) -> Outcome:
    """One attempt after another, on all hosts together, until one ends well or there may be no other."""
    config, attempt = context.config, restarts()
    limit, outcome = attempt + config.train.max_restarts, None
    while True:
        if outcome and not nodes.host_index:
            prepare_restart(context)
        try:
            attempt = monitor.begin(attempt, config.cluster.timeout)
        except PeerTimeout as error:
            if outcome is None:
                raise
            return Outcome(FAILURE, f"{outcome.problem}; {error}")
        (context.run_dir / "summary.json").unlink(missing_ok=True)
        outcome = _of_peers(monitor) or _attempt(context, nodes, processes, monitor, attempt)
        last = not config.train.max_restarts or (attempt == limit and not nodes.host_index)
        if outcome.exit_code != FAILURE or monitor.final or last:
            return outcome
        log.warning("%s; restarting from the newest checkpoint", outcome.problem)
        attempt += 1
        monitor.again(attempt)


def _attempt(
    context: RunContext, nodes: HostGroup, processes: list[Process], monitor: PeerMonitor, attempt: int
) -> Outcome:
    outcome = supervise(
        [replace(each, environment={**each.environment, RESTARTS: str(attempt)}) for each in processes],
        context.run_dir / "train.log",
        not nodes.host_index,
        Peers(lambda: monitor.lost, lambda: monitor.signum),
        lambda pids: replace_text(context.run_dir / PROCESSES, json.dumps(pids, indent=1) + "\n"),
        context.config.cluster.timeout / 2,  # before the others give up waiting, so that it is named
    )
    if nodes.host_index and outcome.exit_code == 0:
        monitor.wait()
        return _of_peers(monitor) or outcome
    return outcome


def _of_peers(monitor: PeerMonitor) -> Outcome | None:
    """How the attempt has ended on another host; None where it has not."""
    if monitor.lost:
        return Outcome(FAILURE, monitor.lost)
    if monitor.ended:
        return Outcome(monitor.ended, "another host's command was stopped")
    return None


def _report(context: RunContext, nodes: HostGroup, chief: str, outcome: Outcome) -> None:
    """Print and record what the chief could not."""
    run_dir, status = context.run_dir, "interrupted" if outcome.exit_code > 128 else "failed"
    if nodes.host_index:
        if outcome.problem:
            log_file = run_dir / "train.log"  # there is none where no attempt has begun
            lines = log_file.read_text().splitlines() if log_file.exists() else []
            errors = [line for line in lines if line.startswith("error: ")]  # what a user can fix
            print(*errors[-1:] or [f"{status}: {outcome.problem}{see_log(run_dir)}"], file=sys.stderr)
        return
    written = (run_dir / "summary.json").exists()
    if not written:
        write_aborted_summary(run_dir, context.config, context.framework, status, outcome.problem)
    report_end(run_dir, outcome.exit_code)
    if written and outcome.problem and not outcome.problem.startswith(f"{chief} ") and outcome.exit_code == FAILURE:
        print(f"failed: {outcome.problem}", file=sys.stderr)  # the chief does not know which rank crashed
