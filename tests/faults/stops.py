"""Runs that receive a signal to stop under each launcher, and the checks of how they stopped."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.two_hosts import ADDRESSES, TwoHosts
from common.run.checkpoint import find_newest_checkpoint
from tests.conftest import wait_until
from tests.faults.conftest import DDP, MULTIWORKER, ROOT, RecordFigures, Run, Start

ENDLESS = "train.steps=1000000"

ASYNCHRONOUS = ("strategy=parameter_server", "strategy.replicas=2")
ONE_SERVER = (*ASYNCHRONOUS, "strategy.max_staleness=0")
KINDS: dict[str, tuple[str, ...]] = {
    "ddp": DDP,
    "allreduce": ("torch", "strategy=allreduce", "strategy.replicas=3"),
    "multiworker": MULTIWORKER,
    "torch-servers": ("torch", *ONE_SERVER),
    "tf-servers": ("tf", *ONE_SERVER),
    "torch-servers-async": ("torch", *ASYNCHRONOUS),
    "tf-servers-async": ("tf", *ASYNCHRONOUS),
}

# Starts a rank for torchrun, and writes its process id and its exit code to files. The wrapper ignores SIGTERM, because
# torchrun signals the whole process group.
RANK = """
import os, signal, subprocess, sys
from pathlib import Path

signal.signal(signal.SIGTERM, lambda *_: None)
path = Path(sys.argv[1], os.environ["RANK"])
child = subprocess.Popen([sys.executable, *sys.argv[2:]])
path.with_suffix(".pid").write_text(str(child.pid))
code = child.wait()
path.with_suffix(".code").write_text(str(code))
sys.exit(code if code >= 0 else 128 - code)
"""


@dataclass
class Stopping:
    """A run that a test stops by signals.

    Attributes:
        commands: The commands of the run; the first is the command of the chief.
        read_pids: Returns the ids of the processes that a test can signal, by name.
        read_codes: Returns the exit codes of the ranks or commands.
        processes: All processes that the run had at the first signal.
    """

    commands: list[Run]
    read_pids: Callable[[], dict[str, int]]
    read_codes: Callable[[], list[int | None]]
    processes: list[psutil.Process] = field(default_factory=list)

    @property
    def chief(self) -> Run:
        return self.commands[0]

    def signal(self, plan: Sequence[tuple[str, float]]) -> float:
        """Send SIGTERM to processes.

        Args:
            plan: The name of each process, and the seconds to wait before its signal.

        Returns:
            The time of the last signal, in seconds of the monotonic clock.
        """
        for command in self.commands:
            parent = psutil.Process(command.process.pid)
            self.processes += [parent, *parent.children(recursive=True)]
        last = time.monotonic()
        pids = self.read_pids()
        for name, delay in plan:
            time.sleep(delay)  # chooses the moment of the signal, which may come at any moment
            try:
                os.kill(pids[name], signal.SIGTERM)
                last = time.monotonic()
            except ProcessLookupError:
                assert delay, f"{name} has ended"  # after a delay, an earlier signal may have stopped the run
        return last

    def assert_agreed(self, last: float, record_figures: RecordFigures) -> int:
        """Check that all ranks stopped after the same step and that its checkpoint is complete.

        Args:
            last: The time of the last signal, in seconds of the monotonic clock.
            record_figures: Receives the seconds from the last signal to the end of all commands.

        Returns:
            The step.
        """
        wait_until(lambda: all(command.process.poll() is not None for command in self.commands))
        record_figures(time.monotonic() - last, 0)
        output = [command.wait_for_end() for command in self.commands]
        assert self.read_codes() == [143] * len(self.read_codes()), output
        _, alive = psutil.wait_procs([process for process in self.processes if process.is_running()], timeout=60)
        assert not alive, output
        run_dir, summary = self.chief.run_dir, self.chief.summary
        assert summary["status"] == "interrupted", output
        checkpoint = find_newest_checkpoint(run_dir)
        saved = checkpoint.position.step if checkpoint is not None else 0
        assert saved == self.chief.step, (saved, self.chief.step, output)
        assert [row["step"] for row in self.chief.rows] == list(range(1, saved + 1))
        assert not list(run_dir.glob("checkpoints/*.partial"))
        return saved


def start_on_one_machine(start: Start, *overrides: str, **options: Any) -> Stopping:
    """Start a run on this machine. Its processes have the names of processes.json."""
    run = start(*overrides, **options)
    run.wait_for((run.run_dir / "processes.json").exists)
    return Stopping([run], lambda: _read_pids(run.run_dir), lambda: [run.process.poll()])


def start_on_two_hosts(start: Start, hosts: TwoHosts, port: int, *overrides: str, **options: Any) -> Stopping:
    """Start a command on each of two hosts. The commands are named node 0 and node 1."""
    shared = (*overrides, "cluster=hosts", f"cluster.hosts=[{','.join(ADDRESSES)}]", f"cluster.port={port}")
    runs = [
        start(*shared, f"cluster.node={node}", command=partial(hosts.wrap_command, node), **options)
        for node in range(2)
    ]
    pids = {f"node {node}": run.process.pid for node, run in enumerate(runs)}
    return Stopping(runs, lambda: pids, lambda: [run.process.poll() for run in runs])


def start_under_torchrun(start: Start, directory: Path, ranks: int, *overrides: str, **options: Any) -> Stopping:
    """Start a run with torchrun. The processes are named torchrun, rank 0 and so on.

    The wrapper of the ranks writes its files to the directory.
    """
    wrapper = directory / "rank.py"
    wrapper.write_text(RANK)

    def wrap_in_torchrun(command: list[str]) -> list[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        return [*launcher, str(wrapper), str(directory), str(ROOT / "torch_impl" / "train.py"), *command[3:]]

    for stale in [*directory.glob("*.pid"), *directory.glob("*.code")]:
        stale.unlink()
    run = start(*overrides, "cluster=env", command=wrap_in_torchrun, **options)
    files = [directory / f"{rank}.pid" for rank in range(ranks)]
    run.wait_for(lambda: all(path.exists() and path.read_text() for path in files))

    def read_codes() -> list[int | None]:
        assert run.process.returncode == 1  # torchrun itself has failed
        return [int((directory / f"{rank}.code").read_text()) for rank in range(ranks)]

    def read_pids() -> dict[str, int]:
        return {"torchrun": run.process.pid, **{f"rank {path.stem}": int(path.read_text()) for path in files}}

    return Stopping([run], read_pids, read_codes)


def _read_pids(run_dir: Path) -> dict[str, int]:
    pids: dict[str, int] = json.loads((run_dir / "processes.json").read_text())
    return pids
