"""A real Ray cluster on one Linux machine: each node is a network namespace, and a bridge connects the nodes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.two_hosts import run_tool
from common.errors import UserError

ROOT = Path(__file__).parents[1]
PORT = 6379
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
START_SECONDS = 180  # only ends a hang
# Ray then notices a lost node after about 3 s, instead of after about 15 s.
HEALTH_CHECKS = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}


class RayCluster:
    """The running nodes. The first node is the head of the cluster."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory, self.count = directory, count
        self.addresses = [f"10.0.0.{node + 1}" for node in range(count)]  # visible only inside the namespaces
        self.names = [f"lockstep-{os.getpid()}-ray{node}" for node in range(count)]
        self.address = f"{self.addresses[0]}:{PORT}"

    def wrap_command(self, node: int, command: list[str]) -> list[str]:
        """Return the command line that runs a command on a node."""
        return ["ip", "netns", "exec", self.names[node], *command]

    def start(self, node: int) -> None:
        """Start Ray on a node."""
        address = self.addresses[node]
        role = [f"--address={self.address}"]
        if node == 0:
            role = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.directory}"]
        command = [*RAY, "start", *role, f"--node-ip-address={address}", "--num-cpus=2"]
        done = subprocess.run(
            self.wrap_command(node, [*command, "--disable-usage-stats"]),
            env={**os.environ, **HEALTH_CHECKS, "PYTHONPATH": str(ROOT)},  # its actors import this repository
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        if done.returncode:
            raise UserError(f"ray start fails on node {node}: {' '.join((done.stdout + done.stderr).split())[-300:]}")

    def list_processes(self, node: int) -> list[psutil.Process]:
        """Return all processes of a node except defunct ones."""
        pids = subprocess.run(["ip", "netns", "pids", self.names[node]], capture_output=True, text=True).stdout
        processes = []
        for pid in pids.split():
            with suppress(psutil.Error):
                process = psutil.Process(int(pid))
                if process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        return processes

    def kill(self, node: int) -> None:
        """Kill all processes of a node, as a power failure does."""
        while processes := self.list_processes(node):
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.05)  # until the next look


@contextmanager
def ray_cluster(count: int = 3) -> Iterator[RayCluster]:
    """Start the cluster, and kill its processes at the end. Raise UserError if this machine cannot run Ray."""
    if shutil.which("ip") is None:
        raise UserError("ip: not found; apt-get install iproute2")
    with TemporaryDirectory(prefix="ray-") as directory:  # a short path, because Ray creates sockets there
        cluster = RayCluster(Path(directory), count)
        try:
            _connect(cluster)
            for node in range(count):
                cluster.start(node)
            yield cluster
        finally:
            for node, name in enumerate(cluster.names):
                cluster.kill(node)
                with suppress(UserError):  # the namespace may not exist
                    run_tool(f"ip netns delete {name}")


def _connect(cluster: RayCluster) -> None:
    """Create the namespaces. The bridge that connects them is in the first one."""
    first, *others = cluster.names
    for name in cluster.names:
        run_tool(f"ip netns add {name}")
        run_tool(f"ip -n {name} link set lo up")
    run_tool(f"ip -n {first} link add bridge type bridge")
    run_tool(f"ip -n {first} address add {cluster.addresses[0]}/24 dev bridge")
    run_tool(f"ip -n {first} link set bridge up")
    for node, name in enumerate(others, 1):
        run_tool(f"ip link add eth0 netns {name} type veth peer name port{node} netns {first}")
        run_tool(f"ip -n {name} address add {cluster.addresses[node]}/24 dev eth0")
        run_tool(f"ip -n {name} link set eth0 up")
        run_tool(f"ip -n {first} link set port{node} master bridge up")
