"""Runs on two hosts, which are network namespaces of this machine."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.two_hosts import ADDRESSES, TwoHosts
from tests.conftest import ROOT, SMALL_IMAGES, wait_until

STEPS = 6


@dataclass
class CompletedRun:
    """The results of the commands of a run, one on each host."""

    run_dir: Path
    exit_codes: list[int]
    errors: list[str]  # the standard error of each command


class HostLauncher:
    """A launcher of runs on two hosts with a shared directory."""

    def __init__(self, hosts: TwoHosts, directory: Path) -> None:
        self.hosts, self.directory = hosts, directory
        self.port = 29500  # a fixed port is safe: nothing else uses ports in these network namespaces

    def start(
        self,
        name: str,
        framework: str,
        *arguments: str,
        nodes: Sequence[int] = (0, 1),
        node_1_overrides: Sequence[str] = (),
    ) -> "Commands":
        """Start the command of a run on some of the hosts.

        Args:
            name: The name of the run directory. Runs named torchrun or tf_config start in that way, all others with
                cluster=hosts.
            framework: The side that trains.
            *arguments: The overrides of all commands.
            nodes: The hosts that get a command.
            node_1_overrides: Additional overrides of the second host.
        """
        self.port += 50
        common = [f"run_dir={self.directory / name}", f"cache_dir={self.directory / 'cache'}", "cluster.timeout=90"]
        common += [*SMALL_IMAGES, f"train.steps={STEPS}", *arguments]
        commands = []
        for node in nodes:
            command, environment = [sys.executable, "-m", f"{framework}_impl.train"], {}
            cluster = ["cluster=hosts", f"cluster.hosts=[{','.join(ADDRESSES)}]", f"cluster.node={node}"]
            cluster.append(f"cluster.port={self.port}")
            if name == "torchrun":
                command[2:] = ["torch.distributed.run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1"]
                command += [f"--master-addr={ADDRESSES[0]}", f"--master-port={self.port}"]
                command.append(str(ROOT / "torch_impl" / "train.py"))
                cluster = ["cluster=env"]
            elif name == "tf_config":
                workers = [f"{address}:{self.port}" for address in ADDRESSES]
                description = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": node}}
                environment, cluster = {"TF_CONFIG": json.dumps(description)}, ["cluster=env"]
            cluster += node_1_overrides if node == 1 else []
            commands.append((node, [*command, *common, *cluster], environment))
        return Commands(self, self.directory / name, commands)


class Commands:
    """The running commands of a run."""

    def __init__(
        self, launcher: HostLauncher, run_dir: Path, commands: list[tuple[int, list[str], dict[str, str]]]
    ) -> None:
        self.run_dir = run_dir
        self.processes = []
        for node, command, environment in commands:
            with self.output(node).open("w") as output:
                self.processes.append(
                    subprocess.Popen(
                        launcher.hosts.wrap_command(node, command),
                        cwd=launcher.directory,
                        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                        stdout=output,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )

    def output(self, node: int) -> Path:
        """Return the file that receives the standard output of the command on a host."""
        return Path(f"{self.run_dir}-output{node}")

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until the condition is true. Fail if a command ends before."""
        wait_until(lambda: condition() or any(process.poll() is not None for process in self.processes))
        assert condition(), f"a command has ended: {[process.returncode for process in self.processes]}"

    def wait_for_end(self, seconds: float = 300) -> CompletedRun:
        """Wait until all commands end. The timeout only ends a hang."""
        deadline = time.monotonic() + seconds
        try:
            errors = [process.communicate(timeout=deadline - time.monotonic())[1] for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        return CompletedRun(self.run_dir, [process.returncode for process in self.processes], errors)
