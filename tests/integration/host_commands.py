"""Commands of runs on two hosts, which are network namespaces of this machine."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.two_hosts import ADDRESSES, TwoHosts
from tests.conftest import ROOT, SMALL_MODEL

STEPS = 6
SMALL = ["data.train_examples=300", "data.validation_examples=60", *SMALL_MODEL, "optimizer.learning_rate=1e-3"]


@dataclass
class Run:
    """What became of a run's commands, one on each host."""

    run_dir: Path
    codes: list[int]
    said: list[str]  # on the terminals' standard error


class Place:
    """Where the commands run: two hosts, and a directory that both see."""

    def __init__(self, hosts: TwoHosts, directory: Path) -> None:
        self.hosts, self.directory = hosts, directory
        self.port = 29500

    def start(
        self,
        name: str,
        framework: str,
        *arguments: str,
        nodes: Sequence[int] = (0, 1),
        of_node_1: Sequence[str] = (),
    ) -> "Commands":
        """Start a run's command on some of the hosts: by cluster=hosts, or as the name of the run says.

        of_node_1: what it is told besides.
        """
        self.port += 50
        common = [f"run_dir={self.directory / name}", f"cache_dir={self.directory / 'cache'}", "cluster.timeout=90"]
        common += [*SMALL, f"train.steps={STEPS}", *arguments]
        commands = []
        for node in nodes:
            command, environment = [sys.executable, "-m", f"{framework}_impl.train"], {}
            own = ["cluster=hosts", f"cluster.hosts=[{','.join(ADDRESSES)}]", f"cluster.node={node}"]
            own.append(f"cluster.port={self.port}")
            if name == "torchrun":
                command[2:] = ["torch.distributed.run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1"]
                command += [f"--master-addr={ADDRESSES[0]}", f"--master-port={self.port}"]
                command.append(str(ROOT / "torch_impl" / "train.py"))
                own = ["cluster=env"]
            elif name == "tf_config":
                workers = [f"{address}:{self.port}" for address in ADDRESSES]
                described = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": node}}
                environment, own = {"TF_CONFIG": json.dumps(described)}, ["cluster=env"]
            own += of_node_1 if node == 1 else []
            commands.append((node, [*command, *common, *own], environment))
        return Commands(self, self.directory / name, commands)


class Commands:
    """The commands of a run, under way."""

    def __init__(self, place: Place, run_dir: Path, commands: list[tuple[int, list[str], dict[str, str]]]) -> None:
        self.run_dir = run_dir
        self.processes = [
            subprocess.Popen(
                place.hosts.wrap_command(node, command),
                cwd=place.directory,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node, command, environment in commands
        ]

    def end(self, seconds: float = 150) -> Run:
        """Wait for all of them."""
        deadline = time.monotonic() + seconds
        try:
            said = [process.communicate(timeout=deadline - time.monotonic())[1] for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        return Run(self.run_dir, [process.returncode for process in self.processes], said)
