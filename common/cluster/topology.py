"""Who takes part in a run and where: a pure mapping of hosts and roles to the variables that each framework reads.

PyTorch reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, which torchrun sets too; TensorFlow reads
TF_CONFIG.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.config.schema import Config
from common.errors import UserError

TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Task:
    """One process of a run: the `index`-th of its role, on host `node`, listening at `address`, host:port."""

    role: str
    index: int
    node: int
    address: str

    def __str__(self) -> str:
        return f"{self.role} {self.index}"


def roles(config: Config) -> dict[str, int]:
    """How many processes of each role a strategy has; the first one of the first role is the chief."""
    if config.strategy.name == "parameter_server":
        return {"chief": 1, "ps": config.strategy.parameter_servers, "worker": config.strategy.workers}
    return {"worker": config.strategy.replicas}


def place(hosts: Sequence[str], roles: Mapping[str, int], ports: Sequence[int]) -> list[Task]:
    """Place the tasks of a run; PyTorch's rank is the place in the list.

    The tasks of a role stand in blocks, host after host. Parameter servers' workers stand in the reverse order, so
    that few of each are on different hosts. ports: the n-th task of a host listens on the n-th.
    """
    used = [0] * len(hosts)
    tasks = []
    for role, count in roles.items():
        for index in range(count):
            node = index * len(hosts) // count
            if role == "worker" and "ps" in roles:
                node = len(hosts) - 1 - node
            host = f"[{hosts[node]}]" if ":" in hosts[node] else hosts[node]
            tasks.append(Task(role, index, node, f"{host}:{ports[used[node]]}"))
            used[node] += 1
    return tasks


def torch_environment(tasks: Sequence[Task], task: Task) -> dict[str, str]:
    """The variables that make a process the rank of a task."""
    master, _, port = tasks[0].address.rpartition(":")
    local = [other for other in tasks if other.node == task.node]
    values = (tasks.index(task), len(tasks), local.index(task), master.strip("[]"), port)
    return dict(zip(TORCH_VARIABLES, map(str, values), strict=True))


def tf_config(tasks: Sequence[Task], task: Task) -> dict[str, str]:
    """The TF_CONFIG that makes a process a task."""
    cluster: dict[str, list[str]] = {}
    for other in tasks:
        cluster.setdefault(other.role, []).append(other.address)
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task.role, "index": task.index}})}


# What an environment says


def is_chief(framework: str, environment: Mapping[str, str]) -> bool:
    """Whether this process is the first of its run, which records it; `framework` is "torch" or "tf"."""
    if framework == "torch":
        return environment.get("RANK", "0") == "0"
    parsed = json.loads(environment.get("TF_CONFIG", "{}"))
    first = "chief" if "chief" in parsed.get("cluster", {}) else "worker"
    return bool(parsed.get("task", {"type": first, "index": 0}) == {"type": first, "index": 0})


def read_torch_environment(config: Config, environment: Mapping[str, str]) -> int | None:
    """The rank that the environment gives this process, or None where it gives none. Raises UserError.

    `strategy.replicas` (or `workers`), where it has no value, is taken from WORLD_SIZE.
    """
    if not _is_member(config, "RANK", environment, "torchrun"):
        return None
    if missing := [name for name in TORCH_VARIABLES if name not in environment]:
        raise UserError(f"RANK is set but {', '.join(missing)} is not; start with torchrun, or unset RANK")
    numbers = {name: environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")}
    for name, text in numbers.items():
        if not text.isdecimal():
            raise UserError(f"{name}={text}: must be a whole number from 0; start with torchrun, or unset RANK")
    rank, size = int(numbers["RANK"]), int(numbers["WORLD_SIZE"])
    if rank >= size:
        raise UserError(f"RANK={rank}: must be below WORLD_SIZE={size}")
    if not 0 < int(numbers["MASTER_PORT"]) < 65536:
        raise UserError(f"MASTER_PORT={numbers['MASTER_PORT']}: must be between 1 and 65535")
    if config.strategy.name not in ("ddp", "allreduce", "parameter_server"):
        raise UserError(
            f"strategy={config.strategy.name}: one process only; under torchrun use strategy=ddp, allreduce or "
            "parameter_server"
        )
    others = 0
    if config.strategy.name == "parameter_server":
        config.strategy.parameter_servers = config.strategy.parameter_servers or 1
        others = 1 + config.strategy.parameter_servers
        if size <= others:
            raise UserError(
                f"WORLD_SIZE={size}: too few for a coordinator, a worker and "
                f"strategy.parameter_servers={config.strategy.parameter_servers}; raise the one or lower the other"
            )
    _agree(config, size - others, f"WORLD_SIZE={size}", f" (with {others} that are no workers)" if others else "")
    return rank


def read_tf_config(config: Config, environment: Mapping[str, str]) -> tuple[str, int] | None:
    """The role and index that TF_CONFIG gives this process, or None where there is no TF_CONFIG. Raises UserError.

    `strategy.workers`, where it has no value, is taken from it.
    """
    if not _is_member(config, "TF_CONFIG", environment, "a scheduler that sets it"):
        return None
    try:
        parsed = json.loads(environment["TF_CONFIG"])
    except ValueError as error:
        raise UserError(f"TF_CONFIG: not valid JSON ({error}); mend or unset it") from error
    cluster, task = _cluster_and_task(parsed)
    if config.strategy.name not in ("multiworker", "parameter_server"):
        raise UserError(
            f"strategy={config.strategy.name}: one process only, but TF_CONFIG describes a cluster; use "
            "strategy=multiworker or parameter_server, or unset TF_CONFIG"
        )
    known = ("chief", "worker", "ps") if config.strategy.name == "parameter_server" else ("chief", "worker")
    for role in (*cluster, task["type"]):
        if role not in known:
            raise UserError(
                f"TF_CONFIG: no role {role!r} in strategy={config.strategy.name}; there are {', '.join(known)}"
            )
    role, index = task["type"], task["index"]
    if index >= len(cluster.get(role, [])):
        raise UserError(f"TF_CONFIG: task {role} {index} is not in its cluster, which has {len(cluster.get(role, []))}")
    workers = len(cluster.get("worker", []))
    if config.strategy.name == "parameter_server":
        if len(cluster.get("chief", [])) != 1 or not cluster.get("ps") or not workers:
            raise UserError("TF_CONFIG: its cluster must have one chief and at least one worker and one ps")
        if config.strategy.parameter_servers not in (None, len(cluster["ps"])):
            raise UserError(
                f"strategy.parameter_servers={config.strategy.parameter_servers} and TF_CONFIG's {len(cluster['ps'])} "
                "ps disagree; leave out the one or mend the other"
            )
        config.strategy.parameter_servers = len(cluster["ps"])
    else:
        workers += len(cluster.get("chief", []))
    _agree(config, workers, f"TF_CONFIG's {workers} workers", "")
    return role, index


def _is_member(config: Config, variable: str, environment: Mapping[str, str], who: str) -> bool:
    if config.cluster.name == "env" and variable not in environment:
        raise UserError(f"cluster=env: {variable} is not set; start with {who}, or use cluster=local or cluster=hosts")
    if config.cluster.name == "hosts" and variable in environment:
        raise UserError(
            f"cluster=hosts and {variable} disagree on who takes part; use cluster=env, or unset {variable}"
        )
    return variable in environment


def _cluster_and_task(parsed: Any) -> tuple[dict[str, list[str]], dict[str, Any]]:
    cluster, task = (parsed.get(key) if isinstance(parsed, dict) else None for key in ("cluster", "task"))
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise UserError('TF_CONFIG: must be {"cluster": {role: [host:port, ...]}, "task": {"type": role, "index": n}}')
    for role, addresses in cluster.items():
        if not isinstance(addresses, list) or not all(_is_address(address) for address in addresses):
            raise UserError(f"TF_CONFIG: cluster.{role} must be a list of host:port, found {json.dumps(addresses)}")
    index = task.get("index")
    if not isinstance(task.get("type"), str) or not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise UserError(f"TF_CONFIG: task must have a type and an index from 0, found {json.dumps(task)}")
    return cluster, task


def _is_address(address: Any) -> bool:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536


def _agree(config: Config, found: int, said: str, note: str) -> None:
    """The config's number of replicas or workers and the environment's; the config's may have no value."""
    key = "workers" if hasattr(config.strategy, "workers") else "replicas"
    if config.strategy.replicas not in (None, found):
        raise UserError(
            f"strategy.{key}={config.strategy.replicas} and {said}{note} disagree; leave out the one or mend the other"
        )
    setattr(config.strategy, key, found)
