import pytest

from common.cluster.engines.auto import discover
from common.cluster.topology import ClusterMember, HostGroup
from common.config.clusters import AutoSettings

CLUSTER = AutoSettings("auto", 120.0, 4000)
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
SKYPILOT = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1"}
INDEXED_JOB = {"JOB_COMPLETION_INDEX": "0", "PET_NNODES": "1", "PET_MASTER_ADDR": "train-0.train"}
VOLCANO = {"VC_TASK_INDEX": "0", "VC_WORKER_HOSTS": "train-worker-0.train"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}


@pytest.mark.parametrize(
    ("environment", "expected", "message"),
    [
        ({}, HostGroup(), "cluster=local: no scheduler's variables are set"),
        (SLURM, HostGroup(), "cluster=slurm: SLURM_JOB_ID is set"),
        (
            SKYPILOT,
            HostGroup(("10.0.0.1", "10.0.0.2"), 1, 4000),
            "cluster=skypilot, node 1 of 2: SKYPILOT_NODE_IPS is set",
        ),
        (INDEXED_JOB, HostGroup(), "cluster=kubernetes: JOB_COMPLETION_INDEX is set"),
        (VOLCANO, HostGroup(), "cluster=kubernetes: VC_TASK_INDEX is set"),
        ({**TORCHRUN, **INDEXED_JOB}, ClusterMember(True, {"process": 2}, "WORLD_SIZE=2"), "cluster=env: RANK is set"),
        ({**TORCHRUN, **SLURM}, ClusterMember(True, {"process": 2}, "WORLD_SIZE=2"), "cluster=env: RANK is set"),
    ],
)
def test_what_the_environment_shows(
    capsys: pytest.CaptureFixture[str], environment: dict[str, str], expected: HostGroup | ClusterMember, message: str
) -> None:
    assert discover(CLUSTER, "ddp", "torch", environment) == expected
    assert capsys.readouterr().err == f"{message}\n"


def test_variables_of_the_other_framework(capsys: pytest.CaptureFixture[str]) -> None:
    assert discover(CLUSTER, "multiworker", "tf", TORCHRUN) == HostGroup()
    assert capsys.readouterr().err == "cluster=local: no scheduler's variables are set\n"
