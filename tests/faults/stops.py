"""Runs that are asked to stop, wherever their processes are, and what must be true of them afterwards."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.two_hosts import ADDRESSES, TwoHosts
from common.run.checkpoint import find_newest_checkpoint
from tests.conftest import wait_until
from tests.faults.conftest import DDP, MULTIWORKER, ROOT, Measured, Run, Start

STOP_SECONDS = 10.0  # from the last signal to the end of all commands
STEPS = 60  # of a run that is resumed to its end
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

# Starts one rank as torchrun does, and keeps its process id and its exit code. torchrun signals the whole group.
RANK = """
import os, signal, subprocess, sys
from pathlib import Path

signal.signal(signal.SIGTERM, lambda *_: None)
place = Path(sys.argv[1], os.environ["RANK"])
child = subprocess.Popen([sys.executable, *sys.argv[2:]])
place.with_suffix(".pid").write_text(str(child.pid))
code = child.wait()
place.with_suffix(".code").write_text(str(code))
sys.exit(code if code >= 0 else 128 - code)
"""


@dataclass
class Stopping:
    """A run's commands, the first of which is the chief's, and the processes to signal, by name."""

    commands: list[Run]
    pids: Callable[[], dict[str, int]]
    codes: Callable[[], list[int | None]]
    seen: list[psutil.Process] = field(default_factory=list)

    @property
    def chief(self) -> Run:
        return self.commands[0]

    def signal(self, plan: Sequence[tuple[str, float]]) -> float:
        """SIGTERM each one that is named, so many seconds after the one before. Returns when the last was sent."""
        for command in self.commands:
            parent = psutil.Process(command.process.pid)
            self.seen += [parent, *parent.children(recursive=True)]
        last = time.monotonic()
        pids = self.pids()
        for name, delay in plan:
            time.sleep(delay)
            try:
                os.kill(pids[name], signal.SIGTERM)
                last = time.monotonic()
            except ProcessLookupError:
                assert delay, f"{name} has ended"  # else an earlier signal has stopped the run already
        return last

    def assert_agreed(self, last: float, measured: Measured) -> int:
        """That all left after the same step, which is saved, in time. last: when the last signal was sent.

        Returns the step.
        """
        wait_until(lambda: all(each.process.poll() is not None for each in self.commands), 4 * STOP_SECONDS)
        seconds = time.monotonic() - last
        measured(seconds, 0)
        said = [each.end() for each in self.commands]
        assert self.codes() == [143] * len(self.codes()), said
        _, alive = psutil.wait_procs([each for each in self.seen if each.is_running()], timeout=5)
        assert not alive, said
        run_dir, summary = self.chief.run_dir, self.chief.summary
        assert summary["status"] == "interrupted", said
        checkpoint = find_newest_checkpoint(run_dir)
        saved = checkpoint.position.step if checkpoint is not None else 0
        assert saved == self.chief.step, (saved, self.chief.step, said)
        assert [row["step"] for row in self.chief.rows] == list(range(1, saved + 1))
        assert not list(run_dir.glob("checkpoints/*.partial"))
        assert seconds <= STOP_SECONDS
        return saved


def on_one_machine(start: Start, *overrides: str, **others: Any) -> Stopping:
    run = start(*overrides, **others)
    run.wait(lambda: (run.run_dir / "processes.json").exists())
    return Stopping([run], lambda: _read(run.run_dir), lambda: [run.process.poll()])


def on_two_hosts(start: Start, hosts: TwoHosts, port: int, *overrides: str, **others: Any) -> Stopping:
    """The commands are named node 0 and node 1."""
    where = (*overrides, "cluster=hosts", f"cluster.hosts=[{','.join(ADDRESSES)}]", f"cluster.port={port}")
    runs = [start(*where, f"cluster.node={node}", command=_on(hosts, node), **others) for node in range(2)]
    pids = {f"node {node}": run.process.pid for node, run in enumerate(runs)}
    return Stopping(runs, lambda: pids, lambda: [run.process.poll() for run in runs])


def under_torchrun(start: Start, place: Path, ranks: int, *overrides: str, **others: Any) -> Stopping:
    """The processes are named torchrun, rank 0 and so on. place: for what is known of the ranks."""
    wrapper = place / "rank.py"
    wrapper.write_text(RANK)

    def torchrun(usual: list[str]) -> list[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        return [*launcher, str(wrapper), str(place), str(ROOT / "torch_impl" / "train.py"), *usual[3:]]

    for stale in [*place.glob("*.pid"), *place.glob("*.code")]:
        stale.unlink()
    run = start(*overrides, "cluster=env", command=torchrun, **others)
    run.wait(lambda: len(list(place.glob("*.pid"))) == ranks)

    def codes() -> list[int | None]:
        assert run.process.returncode == 1  # torchrun's own
        return [int((place / f"{rank}.code").read_text()) for rank in range(ranks)]

    def pids() -> dict[str, int]:
        found = {f"rank {rank}": int((place / f"{rank}.pid").read_text()) for rank in range(ranks)}
        return {"torchrun": run.process.pid, **found}

    return Stopping([run], pids, codes)


def _on(hosts: TwoHosts, node: int) -> Callable[[list[str]], list[str]]:
    return lambda command: hosts.wrap_command(node, command)


def _read(run_dir: Path) -> dict[str, int]:
    pids: dict[str, int] = json.loads((run_dir / "processes.json").read_text())
    return pids
