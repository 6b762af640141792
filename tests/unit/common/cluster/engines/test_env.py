import json
from typing import Any

import pytest

from common.cluster.engines.env import discover
from common.cluster.topology import ClusterMember, HostGroup
from common.config.clusters import EnvSettings
from common.errors import UserError

CLUSTER = EnvSettings("env", 120.0)
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
WORKERS = {"worker": ["a:1", "b:1", "c:1"]}
SERVED = {"chief": ["a:1"], "ps": ["a:2"], "worker": ["b:1", "c:1"]}


CHIEF = {"chief": ["a:1"]}


def torch(strategy: str = "ddp", **variables: str | None) -> HostGroup | ClusterMember:
    """Return the cluster that is discovered if these variables replace torchrun's. None removes a variable."""
    environment = {name: value for name, value in {**TORCHRUN, **variables}.items() if value is not None}
    return discover(CLUSTER, strategy, "torch", environment)


def tf(strategy: str, config: Any) -> HostGroup | ClusterMember:
    """Return the cluster that is discovered with this TF_CONFIG."""
    text = config if isinstance(config, str) else json.dumps(config)
    return discover(CLUSTER, strategy, "tf", {"TF_CONFIG": text})


def task(cluster: Any, role: Any, index: Any) -> dict[str, Any]:
    return {"cluster": cluster, "task": {"type": role, "index": index}}


def test_a_rank() -> None:
    assert torch() == ClusterMember(False, {"process": 3}, "WORLD_SIZE=3")
    assert torch("parameter_server", RANK="0") == ClusterMember(True, {"process": 3}, "WORLD_SIZE=3")


@pytest.mark.parametrize(
    ("strategy", "variables", "expected"),
    [
        ("ddp", {"RANK": None}, "cluster=env: RANK is not set; start with torchrun, or use cluster=local or cluster="),
        ("ddp", {"WORLD_SIZE": None}, "RANK is set but WORLD_SIZE is not; start with torchrun, or unset RANK"),
        ("ddp", {"MASTER_ADDR": None, "LOCAL_RANK": None}, "RANK is set but LOCAL_RANK, MASTER_ADDR is not; start"),
        ("ddp", {"RANK": "one"}, "RANK=one: must be a whole number from 0; start with torchrun, or unset RANK"),
        ("ddp", {"RANK": "-1"}, "RANK=-1: must be a whole number from 0"),
        ("ddp", {"WORLD_SIZE": "2.5"}, "WORLD_SIZE=2.5: must be a whole number from 0"),
        ("ddp", {"LOCAL_RANK": ""}, "LOCAL_RANK=: must be a whole number from 0"),
        ("ddp", {"RANK": "3"}, "RANK=3: must be below WORLD_SIZE=3"),
        ("ddp", {"WORLD_SIZE": "0", "RANK": "0"}, "RANK=0: must be below WORLD_SIZE=0"),
        ("ddp", {"MASTER_PORT": "0"}, "MASTER_PORT=0: must be between 1 and 65535"),
        ("ddp", {"MASTER_PORT": "65536"}, "MASTER_PORT=65536: must be between 1 and 65535"),
        (
            "dp",
            {},
            "strategy=dp: one process only; under torchrun use strategy=ddp, allreduce, zero, fsdp or parameter_server",
        ),
        ("single", {}, "strategy=single: one process only; under torchrun use strategy=ddp, allreduce, zero, fsd"),
    ],
)
def test_variables_of_torchrun_that_cannot_be(strategy: str, variables: dict[str, str | None], expected: str) -> None:
    with pytest.raises(UserError) as raised:
        torch(strategy, **variables)
    assert str(raised.value).startswith(expected)


@pytest.mark.parametrize(
    ("strategy", "config", "expected"),
    [
        (
            "multiworker",
            task(WORKERS, "worker", 0),
            ClusterMember(True, {"worker": 3}, "TF_CONFIG's cluster (3 worker)"),
        ),
        (
            "multiworker",
            task(WORKERS, "worker", 2),
            ClusterMember(False, {"worker": 3}, "TF_CONFIG's cluster (3 worker)"),
        ),
        (
            "multiworker",
            task({"chief": ["a:1"], "worker": ["b:1"]}, "chief", 0),
            ClusterMember(True, {"worker": 2}, "TF_CONFIG's cluster (2 worker)"),
        ),
        (
            "multiworker",
            task({"chief": ["a:1"], "worker": ["b:1"]}, "worker", 0),
            ClusterMember(False, {"worker": 2}, "TF_CONFIG's cluster (2 worker)"),
        ),
        (
            "parameter_server",
            task(SERVED, "chief", 0),
            ClusterMember(True, {"chief": 1, "worker": 2, "ps": 1}, "TF_CONFIG's cluster (1 chief, 2 worker, 1 ps)"),
        ),
        (
            "parameter_server",
            task(SERVED, "ps", 0),
            ClusterMember(False, {"chief": 1, "worker": 2, "ps": 1}, "TF_CONFIG's cluster (1 chief, 2 worker, 1 ps)"),
        ),
    ],
)
def test_a_task(strategy: str, config: Any, expected: ClusterMember) -> None:
    assert tf(strategy, config) == expected


FORM = 'TF_CONFIG: must be {"cluster": {role: [host:port, ...]}, "task": {"type": role, "index": n}}'


@pytest.mark.parametrize(
    ("strategy", "config", "expected"),
    [
        ("multiworker", "{", "TF_CONFIG: not valid JSON ("),
        ("multiworker", [], FORM),
        ("multiworker", {"cluster": WORKERS}, FORM),
        ("multiworker", {"cluster": WORKERS, "task": 3}, FORM),
        ("multiworker", {"cluster": [], "task": {}}, FORM),
        (
            "multiworker",
            task({"worker": "a:1"}, "worker", 0),
            "TF_CONFIG: cluster.worker must be a list of host:port",
        ),
        (
            "multiworker",
            task({"worker": ["a"]}, "worker", 0),
            "TF_CONFIG: cluster.worker must be a list of host:port",
        ),
        ("multiworker", task({"worker": ["a:0"]}, "worker", 0), "TF_CONFIG: cluster.worker must be a list of host:por"),
        ("multiworker", task({"worker": [":1"]}, "worker", 0), "TF_CONFIG: cluster.worker must be a list of host:por"),
        ("multiworker", task({"worker": [1]}, "worker", 0), "TF_CONFIG: cluster.worker must be a list of host:port, f"),
        ("multiworker", task(WORKERS, None, 0), "TF_CONFIG: task must have a type and an index from 0, found "),
        ("multiworker", task(WORKERS, "worker", "0"), "TF_CONFIG: task must have a type and an index from 0, found "),
        ("multiworker", task(WORKERS, "worker", -1), "TF_CONFIG: task must have a type and an index from 0, found "),
        ("multiworker", task(WORKERS, "worker", True), "TF_CONFIG: task must have a type and an index from 0, found "),
        ("multiworker", task(WORKERS, "worker", 3), "TF_CONFIG: task worker 3 is not in its cluster, which has 3"),
        ("multiworker", task(WORKERS, "chief", 0), "TF_CONFIG: task chief 0 is not in its cluster, which has 0"),
        (
            "multiworker",
            task({**WORKERS, "evaluator": ["d:1"]}, "worker", 0),
            "TF_CONFIG: has an evaluator, but the chief evaluates; remove the evaluator from the job",
        ),
        (
            "multiworker",
            task(WORKERS, "evaluator", 0),
            "TF_CONFIG: has an evaluator, but the chief evaluates; remove the evaluator from the job",
        ),
        ("mirrored", task(WORKERS, "evaluator", 0), "TF_CONFIG: has an evaluator, but the chief evaluates; remove"),
        ("parameter_server", task(CHIEF, "chief", 0), "TF_CONFIG: its cluster must have one chief and at least one w"),
        ("multiworker", task(SERVED, "worker", 0), "TF_CONFIG: no role 'ps' in strategy=multiworker; there are chief,"),
        (
            "parameter_server",
            task(WORKERS, "worker", 0),
            "TF_CONFIG: its cluster must have one chief and at least one worker and one ps",
        ),
        (
            "parameter_server",
            task({**SERVED, "chief": ["a:1", "b:2"]}, "worker", 0),
            "TF_CONFIG: its cluster must have one chief and at least one worker and one ps",
        ),
        (
            "mirrored",
            task(WORKERS, "worker", 0),
            "strategy=mirrored: one process only, but TF_CONFIG describes a cluster; use strategy=multiworker or "
            "parameter_server, or unset TF_CONFIG",
        ),
    ],
)
def test_a_tf_config_that_cannot_be(strategy: str, config: Any, expected: str) -> None:
    with pytest.raises(UserError) as raised:
        tf(strategy, config)
    assert str(raised.value).startswith(expected)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("role", ["chief", "worker"])
def test_a_cluster_of_one_task(role: str) -> None:
    alone = task({role: ["a:1"]}, role, 0)
    assert tf("mirrored", alone) == HostGroup(), "a strategy of one process trains on this machine"
    assert tf("multiworker", alone) == ClusterMember(True, {"worker": 1}, "TF_CONFIG's cluster (1 worker)")


@pytest.mark.parametrize("text", ["", "{}", '{"cluster": {}}'])
def test_an_empty_tf_config(text: str) -> None:
    with pytest.raises(UserError, match=r"^cluster=env: TF_CONFIG is empty; start with a scheduler that sets it, or "):
        tf("multiworker", text)


def test_no_tf_config() -> None:
    with pytest.raises(UserError) as raised:
        discover(CLUSTER, "multiworker", "tf", TORCHRUN)
    assert str(raised.value) == (
        "cluster=env: TF_CONFIG is not set; start with a scheduler that sets it, or use cluster=local or cluster=hosts"
    )
