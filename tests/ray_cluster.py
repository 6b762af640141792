"""A real Ray cluster on one Linux machine: a raylet in each of several network namespaces, joined by a bridge."""

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

PORT = 6379
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
START_SECONDS = 60


class RayCluster:
    """The nodes while they run; the first one is Ray's head."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory, self.count = directory, count
        self.addresses = [f"10.0.0.{node + 1}" for node in range(count)]  # inside the namespaces only
        self.names = [f"lockstep-{os.getpid()}-ray{node}" for node in range(count)]
        self.address = f"{self.addresses[0]}:{PORT}"

    def on(self, node: int, command: list[str]) -> list[str]:
        """The command that runs a command on one of the nodes."""
        return ["ip", "netns", "exec", self.names[node], *command]

    def start(self, node: int) -> None:
        """Start Ray on a node."""
        address = self.addresses[node]
        place = [f"--address={self.address}"]
        if node == 0:
            place = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.directory}"]
        command = [*RAY, "start", *place, f"--node-ip-address={address}", "--num-cpus=2"]
        done = subprocess.run(
            self.on(node, [*command, "--disable-usage-stats"]),
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        if done.returncode:
            raise UserError(f"ray start fails on node {node}: {' '.join((done.stdout + done.stderr).split())[-300:]}")

    def processes(self, node: int) -> list[psutil.Process]:
        """All that run on a node, but for defunct ones."""
        listed = subprocess.run(["ip", "netns", "pids", self.names[node]], capture_output=True, text=True).stdout
        found = []
        for pid in listed.split():
            with suppress(psutil.Error):
                process = psutil.Process(int(pid))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self, node: int) -> None:
        """SIGKILL all that run on a node, as where it loses its power."""
        while found := self.processes(node):
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.05)


@contextmanager
def ray_cluster(count: int = 3) -> Iterator[RayCluster]:
    """Start the cluster, and end all that is in it. Raises UserError where Ray is not installed or not permitted."""
    if shutil.which("ip") is None:
        raise UserError("ip: not found; apt-get install iproute2")
    with TemporaryDirectory(prefix="ray-") as directory:  # a short path: Ray makes sockets there
        cluster = RayCluster(Path(directory), count)
        try:
            _connect(cluster)
            for node in range(count):
                cluster.start(node)
            yield cluster
        finally:
            for node, name in enumerate(cluster.names):
                cluster.kill(node)
                with suppress(UserError):  # it may not exist
                    run_tool(f"ip netns delete {name}")


def _connect(cluster: RayCluster) -> None:
    """Make the namespaces; the bridge that joins them is in the first."""
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
