"""A real Slurm cluster of two nodes on one Linux machine: a slurmd in each of two network namespaces."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.two_hosts import ADDRESSES, TwoHosts, two_hosts
from common.errors import UserError

TOOLS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare", "setpriv")
NODES = ("n0", "n1")
START_SECONDS = 120  # only ends a hang
CONFIG = """\
ClusterName=lockstep
SlurmctldHost=n0({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=7
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/%n.spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldDebug=debug
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/%n.log
ReturnToService=2
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1
PartitionName=all Nodes=n[0-1] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:3
"""


class Slurm:
    """The running cluster."""

    def __init__(self, directory: Path, hosts: TwoHosts) -> None:
        self.directory, self.hosts = directory, hosts
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}
        self.daemons: list[subprocess.Popen[bytes]] = []

    def command(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands on the first node."""
        wrapped = self.hosts.wrap_command(0, list(command))
        return subprocess.run(wrapped, env=self.environment, capture_output=True, text=True)

    def check(self, *command: str) -> None:
        """Run one of Slurm's commands, and fail if it fails."""
        done = self.command(*command)
        assert done.returncode == 0, done.stderr

    def submit(self, script: str, *options: str) -> str:
        """Submit a script as a job of two nodes. Return the id of the job."""
        path = self.directory / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        done = self.command("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", *options, str(path))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def wait(self, job: str, seconds: float = 400) -> int:
        """Wait for the end of a job. Return its exit code, or the negative number of the signal that ended it."""
        deadline = time.monotonic() + seconds
        while self.is_queued(job):
            assert time.monotonic() < deadline, f"job {job} has not ended after {seconds:g} seconds"
            time.sleep(0.1)
        exit_code = re.search(r" ExitCode=(\d+):(\d+) ", self.show(job))
        assert exit_code is not None
        return int(exit_code[1]) or -int(exit_code[2])

    def show(self, job: str) -> str:
        """Return what Slurm knows about a job, in one line."""
        return self.command("scontrol", "show", "job", "--oneliner", job).stdout

    def is_queued(self, job: str) -> bool:
        """Check whether a job waits or runs."""
        return job in self.command("squeue", "-h", "-o", "%i").stdout.split()


@contextmanager
def slurm_cluster() -> Iterator[Slurm]:
    """Start the cluster, and kill its processes at the end. Raise UserError if this machine cannot run Slurm."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise UserError(
            f"{', '.join(missing)}: not found; apt-get install slurmd slurmctld slurm-client munge iproute2"
        )
    with TemporaryDirectory(prefix="lockstep-slurm-") as directory, two_hosts() as hosts:
        slurm = Slurm(Path(directory), hosts)
        try:
            _write_names(hosts)
            _configure(slurm)
            _start(slurm)
            yield slurm
        finally:
            for daemon in slurm.daemons:  # all processes that the daemon has started end with it
                daemon.kill()
                daemon.wait()
            for name in hosts.names:
                shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)


def _write_names(hosts: TwoHosts) -> None:
    """Write /etc/hosts of each node. As after an installation of Debian, a node resolves its own name to 127.0.1.1."""
    for node, name in enumerate(hosts.names):
        addresses = dict(zip(NODES, ADDRESSES, strict=True))
        addresses[NODES[node]] = "127.0.1.1"
        path = Path(f"/etc/netns/{name}/hosts")
        path.parent.mkdir(parents=True)
        path.write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address} {node_name}\n" for node_name, address in addresses.items())
        )


def _configure(slurm: Slurm) -> None:
    """Write the configuration of Slurm and MUNGE."""
    directory = slurm.directory
    for name in ("state", *(f"{node}.spool" for node in NODES)):
        (directory / name).mkdir()
    lines = [
        f"NodeName={node} NodeHostname={node} NodeAddr={address} CPUs=2 RealMemory=1000 State=UNKNOWN"
        for node, address in zip(NODES, ADDRESSES, strict=True)
    ]
    config = CONFIG.format(directory=directory, address=ADDRESSES[0])
    (directory / "slurm.conf").write_text("\n".join([*lines, config]))
    (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    (directory / "munge.key").write_bytes(os.urandom(1024))
    (directory / "munge.key").chmod(0o400)


def _start(slurm: Slurm) -> None:
    """Start the daemons, and wait until both nodes are idle."""
    directory, config = slurm.directory, slurm.environment["SLURM_CONF"]
    files = [f"--{kind}={directory}/munge.{suffix}" for kind, suffix in (("socket", "socket"), ("key-file", "key"))]
    files += [f"--{kind}={directory}/munge.{kind}" for kind in ("log-file", "pid-file", "seed-file")]
    _start_daemon(slurm, 0, "munged", ["munged", "--foreground", "--force", *files])
    _wait_until_ready(slurm, "munged", lambda: (directory / "munge.socket").exists())
    _start_daemon(slurm, 0, "slurmctld", _as_node(0, f"exec slurmctld -D -f {config}"))
    for node, name in enumerate(NODES):  # slurmd needs a mount there
        mount = "mount -t tmpfs none /sys/fs/cgroup"
        _start_daemon(slurm, node, name, _as_node(node, f"{mount}; exec slurmd -D -N {name} -f {config}"))
    _wait_until_ready(
        slurm, "slurmctld", lambda: slurm.command("sinfo", "-h", "-N", "-t", "idle").stdout.count("\n") == len(NODES)
    )


def _as_node(node: int, script: str) -> list[str]:
    """Return the command that runs a script under the name of a node, in its own process namespace.

    All processes of the namespace end with its first process.
    """
    isolated = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*isolated, "sh", "-c", f"hostname {NODES[node]}; {script}"]


def _start_daemon(slurm: Slurm, node: int, name: str, command: Sequence[str]) -> None:
    """Start a daemon that ends with this process."""
    with (slurm.directory / f"{name}.out").open("w") as output:
        command_on_node = slurm.hosts.wrap_command(node, ["setpriv", "--pdeathsig", "KILL", *command])
        slurm.daemons.append(subprocess.Popen(command_on_node, env=slurm.environment, stdout=output, stderr=output))


def _wait_until_ready(slurm: Slurm, name: str, is_ready: Callable[[], bool]) -> None:
    """Wait until a daemon is ready. Raise UserError with the end of its output if it is not ready in time."""
    deadline = time.monotonic() + START_SECONDS
    while not is_ready():
        if time.monotonic() > deadline:
            output = (slurm.directory / f"{name}.out").read_text()
            raise UserError(f"{name}: not ready after {START_SECONDS} s: {' '.join(output.split())[-300:]}")
        time.sleep(0.1)
