"""A real Slurm of two nodes on one Linux machine: a slurmd in each of two network namespaces."""

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
    """The cluster while it runs."""

    def __init__(self, directory: Path, hosts: TwoHosts) -> None:
        self.directory, self.hosts = directory, hosts
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}
        self.daemons: list[subprocess.Popen[bytes]] = []

    def command(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands on the first node."""
        wrapped = self.hosts.wrap_command(0, list(command))
        return subprocess.run(wrapped, env=self.environment, capture_output=True, text=True)

    def check(self, *command: str) -> None:
        """Run one of Slurm's commands, which must not fail."""
        done = self.command(*command)
        assert done.returncode == 0, done.stderr

    def submit(self, script: str, *options: str) -> str:
        """Submit a script as a job of two nodes. Returns the job's id."""
        path = self.directory / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        done = self.command("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", *options, str(path))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def wait(self, job: str, seconds: float = 180) -> int:
        """Wait for the end of a job. Returns its exit code, or the signal that ended it, negative."""
        end = time.monotonic() + seconds
        while self.is_queued(job):
            assert time.monotonic() < end, f"job {job} takes too long"
            time.sleep(0.1)
        found = re.search(r" ExitCode=(\d+):(\d+) ", self.show(job))
        assert found is not None
        return int(found[1]) or -int(found[2])

    def show(self, job: str) -> str:
        """What Slurm knows of a job, in one line."""
        return self.command("scontrol", "show", "job", "--oneliner", job).stdout

    def is_queued(self, job: str) -> bool:
        """Whether a job waits or runs."""
        return job in self.command("squeue", "-h", "-o", "%i").stdout.split()


@contextmanager
def slurm_cluster() -> Iterator[Slurm]:
    """Start the cluster, and end all that is in it. Raises UserError where Slurm is not installed or not permitted."""
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
            for daemon in slurm.daemons:  # and with it all that it has started
                daemon.kill()
                daemon.wait()
            for name in hosts.names:
                shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)


def _write_names(hosts: TwoHosts) -> None:
    """/etc/hosts of each node. As Debian's installer has it, a node's own name means 127.0.1.1 to itself."""
    for node, name in enumerate(hosts.names):
        addresses = {each: address for each, address in zip(NODES, ADDRESSES, strict=True)}
        addresses[NODES[node]] = "127.0.1.1"
        path = Path(f"/etc/netns/{name}/hosts")
        path.parent.mkdir(parents=True)
        path.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {each}\n" for each, address in addresses.items()))


def _configure(slurm: Slurm) -> None:
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
    directory, config = slurm.directory, slurm.environment["SLURM_CONF"]
    files = [f"--{kind}={directory}/munge.{suffix}" for kind, suffix in (("socket", "socket"), ("key-file", "key"))]
    files += [f"--{kind}={directory}/munge.{kind}" for kind in ("log-file", "pid-file", "seed-file")]
    _daemon(slurm, 0, "munged", ["munged", "--foreground", "--force", *files])
    _wait(slurm, "munged", lambda: (directory / "munge.socket").exists())
    _daemon(slurm, 0, "slurmctld", _as_node(0, f"exec slurmctld -D -f {config}"))
    for node, name in enumerate(NODES):  # slurmd wants something mounted there
        mount = "mount -t tmpfs none /sys/fs/cgroup"
        _daemon(slurm, node, name, _as_node(node, f"{mount}; exec slurmd -D -N {name} -f {config}"))
    _wait(slurm, "slurmctld", lambda: slurm.command("sinfo", "-h", "-N", "-t", "idle").stdout.count("\n") == len(NODES))


def _as_node(node: int, script: str) -> list[str]:
    """With the node's name as the machine's, in a process namespace, all of which ends with its first process."""
    isolated = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*isolated, "sh", "-c", f"hostname {NODES[node]}; {script}"]


def _daemon(slurm: Slurm, node: int, name: str, command: Sequence[str]) -> None:
    """Start a daemon that ends with this process."""
    with (slurm.directory / f"{name}.out").open("w") as output:
        dying = ["setpriv", "--pdeathsig", "KILL", *command]
        command = slurm.hosts.wrap_command(node, dying)
        slurm.daemons.append(subprocess.Popen(command, env=slurm.environment, stdout=output, stderr=output))


def _wait(slurm: Slurm, name: str, ready: Callable[[], bool]) -> None:
    for _ in range(60):
        if ready():
            return
        time.sleep(1)
    said = (slurm.directory / f"{name}.out").read_text()
    raise UserError(f"{name}: is not ready after 60 s: {' '.join(said.split())[-300:]}")
