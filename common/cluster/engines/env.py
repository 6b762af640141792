"""Engine of cluster=env: another program has started this process as one of a run, and its variables describe the run.

The variables are RANK, WORLD_SIZE and others that torchrun sets for PyTorch, or TF_CONFIG for TensorFlow.
"""

import json
from collections.abc import Mapping
from typing import TypedDict

from common.cluster.topology import TORCH_VARIABLES, ClusterMember, HostGroup
from common.config.clusters import ClusterSettings
from common.config.strategies import STRATEGIES, list_strategies
from common.errors import UserError

VARIABLES = {"torch": "RANK", "tf": "TF_CONFIG"}  # the variable that shows that a launcher started this process
STARTERS = {"torch": "torchrun", "tf": "a scheduler that sets it"}
TF_CONFIG_FORM = '{"cluster": {role: [host:port, ...]}, "task": {"type": role, "index": n}}'


class TfConfigTask(TypedDict):
    """The task of this process in TF_CONFIG."""

    type: str
    index: int


class TfConfig(TypedDict):
    """The contents of TF_CONFIG: the addresses of each role, and the task of this process."""

    cluster: dict[str, list[str]]
    task: TfConfigTask


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> HostGroup | ClusterMember:
    """Return this process as a member of the run that another program has started.

    If the strategy has one process and TF_CONFIG has one task, return HostGroup(), this machine. Raise UserError.
    """
    if not is_described(framework, environment):
        state = "is empty" if VARIABLES[framework] in environment else "is not set"
        raise UserError(
            f"cluster=env: {VARIABLES[framework]} {state}; start with {STARTERS[framework]}, or use cluster=local or "
            "cluster=hosts"
        )
    read_cluster = _read_torch_variables if framework == "torch" else _read_tf_config
    return read_cluster(strategy, environment)


def is_described(framework: str, environment: Mapping[str, str]) -> bool:
    """Check whether torchrun's variables or TF_CONFIG describe a cluster. An empty TF_CONFIG describes none."""
    text = environment.get(VARIABLES[framework])
    if text is None or framework == "torch":
        return text is not None
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        return True  # `discover` reports the invalid JSON
    return not (parsed == {} or (isinstance(parsed, dict) and parsed.get("cluster") == {}))


def check_unset(cluster: ClusterSettings, framework: str, environment: Mapping[str, str]) -> None:
    """Raise UserError if torchrun's variables or TF_CONFIG also describe a cluster, since a run can have only one."""
    variable = VARIABLES[framework]
    if is_described(framework, environment):
        raise UserError(
            f"cluster={cluster.kind} and {variable} disagree on who takes part; use cluster=env, or unset {variable}"
        )


def _read_torch_variables(strategy: str, environment: Mapping[str, str]) -> ClusterMember:
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
    if STRATEGIES[strategy].one_process:  # even if WORLD_SIZE is 1: these variables ask for a group of processes
        raise UserError(f"strategy={strategy}: one process only; under torchrun use {_list_group_strategies('torch')}")
    return ClusterMember(is_chief=rank == 0, roles={"process": size}, source=f"WORLD_SIZE={size}")


def _read_tf_config(strategy: str, environment: Mapping[str, str]) -> HostGroup | ClusterMember:
    tf_config = _parse_tf_config(environment["TF_CONFIG"])
    cluster, task = tf_config["cluster"], tf_config["task"]
    if "evaluator" in (task["type"], *cluster):
        raise UserError("TF_CONFIG: has an evaluator, but the chief evaluates; remove the evaluator from the job")
    if STRATEGIES[strategy].one_process and [len(addresses) for addresses in cluster.values()] == [1]:
        return HostGroup()  # a cluster of one task, such as a chief alone, is this machine
    if STRATEGIES[strategy].one_process:
        raise UserError(
            f"strategy={strategy}: one process only, but TF_CONFIG describes a cluster; use "
            f"{_list_group_strategies('tf')}, or unset TF_CONFIG"
        )
    has_servers = strategy == "parameter_server"
    known_roles = ("chief", "worker", "ps") if has_servers else ("chief", "worker")
    for role in (*cluster, task["type"]):
        if role not in known_roles:
            raise UserError(f"TF_CONFIG: no role {role!r} in strategy={strategy}; there are {', '.join(known_roles)}")
    role, index = task["type"], task["index"]
    if index >= len(cluster.get(role, [])):
        raise UserError(f"TF_CONFIG: task {role} {index} is not in its cluster, which has {len(cluster.get(role, []))}")
    counts = {role: len(cluster.get(role, [])) for role in known_roles}
    if has_servers and (counts["chief"] != 1 or not counts["ps"] or not counts["worker"]):
        raise UserError("TF_CONFIG: its cluster must have one chief and at least one worker and one ps")
    if not has_servers:  # the chief of MultiWorkerMirroredStrategy is a worker too
        counts = {"worker": counts["chief"] + counts["worker"]}
    is_chief = (role, index) == ("chief" if "chief" in cluster else "worker", 0)
    listed_roles = ", ".join(f"{count} {role}" for role, count in counts.items())
    return ClusterMember(is_chief=is_chief, roles=counts, source=f"TF_CONFIG's cluster ({listed_roles})")


def _list_group_strategies(framework: str) -> str:
    """Return the strategies that have several processes, as text for an error message."""
    *kinds, last = [kind for kind in list_strategies(framework) if not STRATEGIES[kind].one_process]
    return f"strategy={', '.join(kinds)} or {last}"


def _parse_tf_config(text: str) -> TfConfig:
    """Return the contents of TF_CONFIG. Raise UserError if they do not have its form."""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise UserError(f"TF_CONFIG: not valid JSON ({error}); fix or unset it") from error
    match parsed:
        case {"cluster": dict(cluster), "task": dict(task)}:
            pass
        case _:
            raise UserError(f"TF_CONFIG: must be {TF_CONFIG_FORM}")
    for role, addresses in cluster.items():
        if not isinstance(addresses, list) or not all(_is_address(address) for address in addresses):
            raise UserError(f"TF_CONFIG: cluster.{role} must be a list of host:port, found {json.dumps(addresses)}")
    role, index = task.get("type"), task.get("index")
    if not isinstance(role, str) or not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise UserError(f"TF_CONFIG: task must have a type and an index from 0, found {json.dumps(task)}")
    return {"cluster": cluster, "task": {"type": role, "index": index}}


def _is_address(address: object) -> bool:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536
