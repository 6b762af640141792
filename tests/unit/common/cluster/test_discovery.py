import json
from dataclasses import replace

import pytest

from common.cluster import discovery
from common.cluster.discovery import count_used_nodes, discover_cluster
from common.cluster.topology import ClusterMember, HostGroup, RayNodes
from common.config.clusters import HostsSettings
from common.errors import UserError
from tests.conftest import MakeConfig
from tests.unit.common.conftest import Gpus

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
TF_CONFIG = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})}
HOSTS = ("cluster=hosts", "cluster.hosts=[a,b]", "cluster.port=29500")


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of checked ports. This machine pretends to have the address of every host."""
    ports: list[int] = []
    monkeypatch.setattr(discovery, "check_ports", ports.extend)
    monkeypatch.setattr("common.cluster.engines.hosts._look_up", lambda host: {"10.0.0.1"})
    monkeypatch.setattr("common.cluster.engines.hosts.find_host_interface", lambda host: "eth0")
    return ports


def test_this_machine(make_config: MakeConfig, gpus: Gpus, checked: list[int]) -> None:
    gpus(4)
    config, cluster = discover_cluster(make_config("strategy=ddp"), "torch", {})
    assert cluster == HostGroup()
    assert config.strategy.replicas == 4
    assert checked == []


def test_a_member_of_torchruns_group(make_config: MakeConfig) -> None:
    config, cluster = discover_cluster(make_config("strategy=ddp"), "torch", TORCHRUN)
    assert cluster == ClusterMember(False, {"process": 3}, "WORLD_SIZE=3")
    assert config.strategy.replicas == 3
    with pytest.raises(UserError, match=r"^strategy.replicas=2, but WORLD_SIZE=3 gives 3; "):
        discover_cluster(make_config("strategy=ddp", "strategy.replicas=2"), "torch", TORCHRUN)


def test_a_task_of_tf_config(make_config: MakeConfig) -> None:
    config, cluster = discover_cluster(make_config("strategy=multiworker", "cluster=env"), "tf", TF_CONFIG)
    assert isinstance(cluster, ClusterMember) and not cluster.is_chief
    assert config.strategy.replicas == 2


@pytest.mark.parametrize("cluster", ["local", "env", "auto"])
def test_what_another_launcher_started_it_has_to_restart(make_config: MakeConfig, cluster: str) -> None:
    config = make_config("strategy=ddp", f"cluster={cluster}", "train.max_restarts=2")
    with pytest.raises(UserError) as raised:
        discover_cluster(config, "torch", TORCHRUN)
    assert str(raised.value) == (
        "train.max_restarts=2: WORLD_SIZE=3 says that this process was started by another launcher, which has to "
        "restart it; set it to 0, and use resume=auto"
    )


@pytest.mark.slow
def test_a_mistake_in_the_config_is_found_first(make_config: MakeConfig) -> None:
    with pytest.raises(UserError, match=r"^train.steps=0: must be at least 1"):
        discover_cluster(make_config("cluster=env", "train.steps=0"), "torch", {})
    with pytest.raises(UserError, match=r"^strategy=mirrored: a TensorFlow strategy"):
        discover_cluster(make_config("strategy=mirrored"), "torch", {})


@pytest.mark.parametrize(
    ("framework", "strategy", "node", "ports"),
    [
        ("torch", "ddp", 0, [29500, 29504, 29505]),  # only the first rank of PyTorch listens
        ("torch", "ddp", 1, []),
        ("tf", "multiworker", 0, [29500, 29501, 29504, 29505]),
        ("tf", "multiworker", 1, [29500, 29501]),
        ("tf", "parameter_server", 0, [29500, 29501, 29502, 29503, 29506, 29507]),
        ("tf", "parameter_server", 1, [29500, 29501]),
    ],
)
def test_the_ports_of_a_host_are_checked(
    make_config: MakeConfig, checked: list[int], framework: str, strategy: str, node: int, ports: list[int]
) -> None:
    overrides = [*HOSTS, f"strategy={strategy}", f"cluster.node={node}"]
    config, cluster = discover_cluster(make_config(*overrides), framework, {})
    assert cluster == HostGroup(("a", "b"), node, 29500)
    assert config.strategy.replicas == 4
    assert checked == ports


def test_the_port_for_stops_is_the_last() -> None:
    assert HostGroup(("a", "b"), 0, 29500).stop_port(4) == 29505


def test_a_host_without_a_process(make_config: MakeConfig, checked: list[int]) -> None:
    """The run has three processes. The coordinator and the server are on the first host."""
    config = make_config("strategy=parameter_server", "strategy.workers=1")
    with pytest.raises(UserError, match=r"^strategy.replicas=1: host b would have no process; raise it or name fewer"):
        discover_cluster(replace(config, cluster=HostsSettings("hosts", 9.0, ["a", "b", "c"], 0, 29500)), "torch", {})


@pytest.mark.parametrize(
    ("overrides", "available", "expected"),
    [
        (["strategy=ddp"], 3, 3),
        (["strategy=ddp", "strategy.replicas=2"], 3, 2),
        (["strategy=dp", "strategy.replicas=2"], 3, 1),
        (["strategy=parameter_server", "strategy.workers=1"], 3, 2),
        (["strategy=parameter_server", "strategy.workers=2"], 3, 3),
        (["strategy=parameter_server", "strategy.workers=2", "strategy.parameter_servers=2"], 5, 4),
    ],
)
def test_the_nodes_that_a_run_uses(
    make_config: MakeConfig, overrides: list[str], available: int, expected: int
) -> None:
    assert count_used_nodes(make_config(*overrides).strategy, available) == expected


@pytest.mark.slow
def test_the_nodes_of_a_ray_cluster(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the user sets no number of replicas, a later attempt derives it from the nodes that are available then."""
    monkeypatch.setattr("common.cluster.engines.ray.discover", lambda *arguments: RayNodes(3, 4))
    config, cluster = discover_cluster(make_config("strategy=ddp", "cluster=ray"), "torch", {})
    assert (config.strategy.replicas, cluster) == (12, RayNodes(3, 4))
    config, cluster = discover_cluster(make_config("strategy=ddp", "strategy.replicas=8", "cluster=ray"), "torch", {})
    assert (config.strategy.replicas, cluster) == (8, RayNodes(3, 4, 8))
    config, cluster = discover_cluster(make_config("strategy=mirrored", "cluster=ray"), "tf", {})
    assert (config.strategy.replicas, cluster) == (4, RayNodes(3, 4, 4))
    config, cluster = discover_cluster(make_config("strategy=ddp", "train.device=cpu", "cluster=ray"), "torch", {})
    assert (config.strategy.replicas, cluster) == (6, RayNodes(3, 0))
    with pytest.raises(UserError, match=r"^train.global_batch_size=32: smaller than the 40 replicas"):
        discover_cluster(make_config("strategy=ddp", "strategy.replicas=40", "cluster=ray"), "torch", {})
