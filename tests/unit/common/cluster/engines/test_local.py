import pytest

from common.cluster.engines.local import discover
from common.cluster.topology import ClusterMember, HostGroup
from common.config.clusters import LocalSettings
from common.errors import UserError

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}


CLUSTER = LocalSettings("local", 120.0)
BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
AGAIN = "and each would train the whole run"
SRUN = f"{AGAIN}; start with srun --ntasks-per-node=1 and cluster=slurm, or unset SLURM_PROCID if each is to train"


def test_this_machine_unless_the_environment_says_more() -> None:
    assert discover(CLUSTER, "ddp", "torch", {}) == HostGroup()
    assert discover(CLUSTER, "ddp", "torch", TORCHRUN) == ClusterMember(True, {"process": 2}, "WORLD_SIZE=2")
    assert discover(CLUSTER, "mirrored", "tf", TORCHRUN) == HostGroup(), (
        "variables of the other framework must be ignored"
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {**BATCH_SCRIPT, "SLURM_STEP_NUM_TASKS": "2"},
            f"SLURM_PROCID=0 says that this command was started 2 times, {SRUN}",
        ),
        ({**BATCH_SCRIPT, "SLURM_PROCID": "1"}, f"SLURM_PROCID=1 says that this command was started 2 times, {SRUN}"),
        (
            {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "0"},
            f"SKYPILOT_NODE_RANK=0 says that this command was started 2 times, {AGAIN}; use cluster=skypilot, or unset "
            "SKYPILOT_NODE_RANK if each is to train",
        ),
        (
            {"JOB_COMPLETION_INDEX": "1", "PET_NNODES": "3"},
            f"JOB_COMPLETION_INDEX=1 says that this command was started 3 times, {AGAIN}; use cluster=kubernetes, or "
            "unset JOB_COMPLETION_INDEX if each is to train",
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
            f"OMPI_COMM_WORLD_RANK=1 says that this command was started 2 times, {AGAIN}; start with torchrun, or use "
            "cluster=hosts, or unset OMPI_COMM_WORLD_RANK if each is to train",
        ),
        (
            {"PMI_RANK": "0", "PMI_SIZE": "4"},
            f"PMI_RANK=0 says that this command was started 4 times, {AGAIN}; start with torchrun, or use "
            "cluster=hosts, or unset PMI_RANK if each is to train",
        ),
    ],
)
@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_a_scheduler_that_starts_the_command_several_times(
    framework: str, environment: dict[str, str], expected: str
) -> None:
    with pytest.raises(UserError) as raised:
        discover(CLUSTER, "single", framework, environment)
    assert str(raised.value) == f"cluster=local: {expected}"


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"},  # of salloc
        {"JOB_COMPLETION_INDEX": "0"},
        {"SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_NODE_RANK": "0"},
    ],
)
def test_one_command_of_a_scheduler(capsys: pytest.CaptureFixture[str], environment: dict[str, str]) -> None:
    assert discover(CLUSTER, "ddp", "torch", environment) == HostGroup()
    assert capsys.readouterr().err == ""


def test_a_batch_script_uses_one_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert discover(CLUSTER, "ddp", "torch", BATCH_SCRIPT) == HostGroup()
    assert capsys.readouterr().err == (
        "cluster=local: trains on this node only, but SLURM_NTASKS=2; to use all tasks, start with srun "
        "--ntasks-per-node=1 and cluster=slurm\n"
    )


@pytest.mark.parametrize(
    "text", ["", "{}", '{"cluster": {}}', '{"cluster": {}, "task": {"type": "worker", "index": 0}}']
)
def test_an_empty_tf_config(text: str) -> None:
    assert discover(CLUSTER, "multiworker", "tf", {"TF_CONFIG": text}) == HostGroup()


def test_torchrun_around_a_run_of_tensorflow() -> None:
    with pytest.raises(UserError) as raised:
        discover(CLUSTER, "mirrored", "tf", {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"})
    assert str(raised.value) == (
        f"cluster=local: TORCHELASTIC_RUN_ID=none says that this command was started 2 times, {AGAIN}; torchrun starts "
        "no runs of TensorFlow; strategy=multiworker starts its processes itself, "
        "or unset TORCHELASTIC_RUN_ID if each is to train"
    )
    assert discover(CLUSTER, "mirrored", "tf", {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "1"}) == HostGroup()
