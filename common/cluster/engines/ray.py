"""Engine of cluster=ray: the nodes of a Ray cluster, on each of which common.cluster.ray_driver starts the command."""

import importlib.util
import logging
import socket
from collections.abc import Mapping
from typing import TypedDict

from common.cluster.engines import env
from common.cluster.topology import RayNodes
from common.config import clusters
from common.errors import UserError, error_reason
from common.training.stop import preserve_handlers

VARIABLE = "RAY_ADDRESS"  # `ray job submit` sets it for the command that it starts
CONNECT_SECONDS = 5.0


class RayNodeInfo(TypedDict):
    """The part of Ray's description of a node that Lockstep reads."""

    NodeManagerAddress: str
    Alive: bool
    Resources: dict[str, float]


def discover(
    cluster: clusters.ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> RayNodes:
    """Return the nodes that the cluster has now. Raise UserError if it cannot be reached."""
    env.check_unset(cluster, framework, environment)  # torchrun's variables would describe another run
    # cluster=auto has no key for the address. `name` is the key or the variable that has the address, for errors.
    name, address = "cluster.address", cluster.address if isinstance(cluster, clusters.RaySettings) else "auto"
    if address == "auto" and environment.get(VARIABLE):
        name, address = VARIABLE, environment[VARIABLE]
    _connect(cluster.kind, name, address)
    nodes = list_usable_nodes()
    if not nodes:
        raise UserError(f"cluster={cluster.kind}: no node of the Ray cluster has a CPU or GPU; start Ray on more nodes")
    return RayNodes(len(nodes), count_on_every_node(nodes, "GPU"))


def list_usable_nodes() -> list[RayNodeInfo]:
    """Return the nodes that a run may use: the nodes with GPUs or, if no node has any, the nodes with CPUs."""
    import ray

    nodes: list[RayNodeInfo] = [node for node in ray.nodes() if node["Alive"]]
    with_gpus, with_cpus = ([node for node in nodes if node["Resources"].get(kind, 0) >= 1] for kind in ("GPU", "CPU"))
    return with_gpus or with_cpus


def count_on_every_node(nodes: list[RayNodeInfo], resource: str) -> int:
    """Return the smallest amount of a resource, "GPU" or "CPU", on any node."""
    return int(min((node["Resources"].get(resource, 0) for node in nodes), default=0))


def _connect(kind: str, name: str, address: str) -> None:
    """Connect this process to the cluster. Raise UserError. name: the key or variable that has the address."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"cluster={kind}: the package ray is not installed; pip install ray")
    if "://" in address:
        raise UserError(
            f"{name}={address}: must be host:port or auto; start the command on a node of the cluster, or "
            "with ray job submit"
        )
    import ray

    host, _, port = address.rpartition(":")
    try:
        if host and port.isdecimal():  # without this check Ray would wait forever for a cluster that does not exist
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        with preserve_handlers():  # ray.init replaces handlers of signals
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        reason = error_reason(error).partition(". ")[0]
        raise UserError(
            f"{name}={address}: no Ray cluster here ({reason}); start Ray, or the command on one of its nodes"
        ) from error
