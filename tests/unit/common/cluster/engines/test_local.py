from common.cluster.engines.local import discover
from common.cluster.topology import ClusterMember, HostGroup
from common.config.clusters import LocalSettings

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}


def test_this_machine_unless_the_environment_says_more() -> None:
    cluster = LocalSettings("local", 120.0)
    assert discover(cluster, "ddp", "torch", {}) == HostGroup()
    assert discover(cluster, "ddp", "torch", TORCHRUN) == ClusterMember(True, {"process": 2}, "WORLD_SIZE=2")
    assert discover(cluster, "mirrored", "tf", TORCHRUN) == HostGroup(), (
        "variables of the other framework must be ignored"
    )
