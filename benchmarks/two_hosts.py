"""Two hosts on one Linux machine: network namespaces, connected by a virtual cable (veth) whose speed can be set.

Linux's traffic shaper (`tc`) limits the speed: packets wait, or are dropped if they would wait too long.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from common.errors import UserError, one_line

ADDRESSES = ("10.0.0.1", "10.0.0.2")  # inside the namespaces only
BURST_MS = 1  # the shaper sends what the link carries in this time at once; with less it would not reach 1 Gbit/s
QUEUE_MS = 200  # how long a packet may wait in the shaper before it is dropped


class TwoHosts:
    """The two network namespaces."""

    def __init__(self) -> None:
        self.names = [f"lockstep-{os.getpid()}-{node}" for node in range(2)]

    def wrap_command(self, node: int, command: list[str]) -> list[str]:
        """Return the command that runs a command on one of the hosts."""
        return ["ip", "netns", "exec", self.names[node], *command]

    def limit(self, mbit: float) -> None:
        """Limit the speed of both directions. mbit: megabits (10^6 bits) per second. Raise UserError."""
        burst = max(16 << 10, round(mbit * 1e6 / 8 * BURST_MS / 1000))  # bytes
        for name in self.names:
            run_tool(f"tc -n {name} qdisc replace dev veth root tbf rate {mbit}mbit burst {burst} latency {QUEUE_MS}ms")


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Create the namespaces, and remove them after the body. Raise UserError if that is not permitted."""
    hosts = TwoHosts()
    try:
        for name in hosts.names:
            run_tool(f"ip netns add {name}")
        run_tool(f"ip link add veth netns {hosts.names[0]} type veth peer name veth netns {hosts.names[1]}")
        for name, address in zip(hosts.names, ADDRESSES, strict=True):
            run_tool(f"ip -n {name} address add {address}/24 dev veth")
            for device in ("lo", "veth"):
                run_tool(f"ip -n {name} link set {device} up")
        yield hosts
    finally:
        for name in hosts.names:
            with suppress(UserError):  # the namespace may not exist
                run_tool(f"ip netns delete {name}")


def run_tool(command: str) -> None:
    """Run a tool that configures the network. Raise UserError if it is missing or fails."""
    tool = command.split()[0]
    if shutil.which(tool) is None:
        raise UserError(f"{tool}: not found; two hosts on one machine need Linux and iproute2")
    completed = subprocess.run(command.split(), capture_output=True, text=True)
    if completed.returncode:
        raise UserError(f"`{command}` is not permitted or failed: {one_line(completed.stderr)}")
