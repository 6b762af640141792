"""What the hosts of a run must have: addresses and free ports of their own, and the same config and data.

What differs between them would not stop a run: it would train something else, or wait for ever.
"""

import socket
from collections.abc import Mapping
from typing import Any

from common.cluster import topology as cluster
from common.cluster.peer_monitor import lifeline_port
from common.cluster.processes import check_ports
from common.config.schema import Config, flat
from common.errors import UserError
from common.hardware import interface_with
from common.models.initial_weights import InitialCheckpoint

ONE_HOSTS_OWN = (
    "run_dir",
    "resume",
    "run_name",
    "cache_dir",
    "cluster.",
    "data.",
    "model.checkpoint",
    "train.log_every",
)


def check_host(config: Config, framework: str) -> None:
    """Raises UserError where `cluster=hosts` and this machine is not the host that the config says."""
    hosts, node, port = config.cluster.hosts, config.cluster.node, config.cluster.port
    if config.cluster.name != "hosts":
        return
    assert hosts is not None and node is not None and port is not None
    interface_of(hosts[node])
    tasks = cluster.place(hosts, cluster.roles(config), range(port, port + 1000))
    if framework == "tf":
        check_ports([int(task.address.rpartition(":")[2]) for task in tasks if task.node == node])
    elif node == 0:
        check_ports([port])
    if node == 0:
        check_ports([lifeline_port(config)])


def interface_of(host: str) -> str:
    """The network interface of this machine that has the address of a host. Raises UserError where none has."""
    try:
        wanted = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise UserError(f"cluster.hosts: {host} has no address ({error.strerror}); give its address") from error
    if name := interface_with({address for address in wanted if not address.startswith("127.")}):
        return name
    known = "" if wanted == {host} else f" ({', '.join(sorted(wanted))})"
    raise UserError(f"cluster.node: {host}{known} is no address of this machine in a network; give the node that it is")


def must_agree(config: Config, initial: InitialCheckpoint) -> dict[str, Any]:
    """What must be the same in every process of a run, by key; places on a host's disk need not be."""

    keys = {key: value for key, value in flat(config).items() if not key.startswith(ONE_HOSTS_OWN)}
    fingerprints = {"data": initial.data_fingerprint, "initial weights": initial.fingerprint}
    return {**keys, **fingerprints, "checkpoint": initial.checkpoint}


def disagreement(who: str, theirs: Mapping[str, Any], leader: str, its: Mapping[str, Any]) -> str | None:
    """What to tell the user where two processes' `must_agree` differ in what both have, or None where they do not."""
    keys = [key for key in its if key in theirs and its[key] != theirs[key]]
    if not keys:
        return None
    told = [f"{key} ({theirs[key]}, not {its[key]})" if "." in key else key for key in keys]
    return f"{who} differs from {leader} in {', '.join(told)}; give every host the same"
