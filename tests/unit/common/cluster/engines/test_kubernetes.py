import os
import signal
import socket
from collections.abc import Callable

import pytest

from common.cluster.engines.kubernetes import discover
from common.cluster.topology import HostGroup, choose_job_port
from common.config.clusters import KubernetesSettings
from common.errors import Interrupted, UserError

CLUSTER = KubernetesSettings("kubernetes", 120.0, None)
OWN = "10.0.0.7"
JOB = {"JOB_COMPLETION_INDEX": "1", "PET_NNODES": "3", "PET_MASTER_ADDR": "train-0.train"}
JOBSET = {"JOB_COMPLETION_INDEX": "0", "PET_NNODES": "2", "PET_MASTER_ADDR": "my-set-node-0-0.my-set"}
TRAINJOB = {**JOBSET, "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "auto", "PET_MASTER_PORT": "29500"}
VOLCANO = {
    "VC_TASK_INDEX": "1",
    "VK_TASK_INDEX": "1",
    "VC_WORKER_HOSTS": "train-worker-0.train,train-worker-1.train",
    "VC_WORKER_NUM": "2",
}
Unknown = Callable[[int], list[str]]


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> Unknown:
    """Return a function that makes names unknown for a number of tries, and returns the list of looked-up names."""

    def prepare(tries: int) -> list[str]:
        asked: list[str] = []

        def find_address_towards(host: str) -> str:
            asked.append(host)
            if len(asked) <= tries:
                raise socket.gaierror(-2, "Name or service not known")
            return OWN

        monkeypatch.setattr("common.cluster.network.find_address_towards", find_address_towards)
        monkeypatch.setattr("common.cluster.network.POLL_SECONDS", 0.01)
        return asked

    return prepare


@pytest.mark.parametrize(
    ("environment", "hosts", "node", "first"),
    [
        (JOB, ("train-0.train", OWN, "train-2.train"), 1, "train-0.train"),
        (JOBSET, (OWN, "my-set-node-0-1.my-set"), 0, "my-set-node-0-0.my-set"),
        (TRAINJOB, (OWN, "my-set-node-0-1.my-set"), 0, "my-set-node-0-0.my-set"),
        (VOLCANO, ("train-worker-0.train", OWN), 1, "train-worker-0.train"),
        ({**VOLCANO, **JOB}, ("train-worker-0.train", OWN), 1, "train-worker-0.train"),
    ],
    ids=["job", "jobset", "trainjob", "volcano", "volcano with torchrun's variables"],
)
@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_the_pods(
    unknown: Unknown, environment: dict[str, str], hosts: tuple[str, ...], node: int, first: str, framework: str
) -> None:
    asked = unknown(0)
    assert discover(CLUSTER, "ddp", framework, environment) == HostGroup(hosts, node, choose_job_port(first))
    assert asked == [host for host in hosts if host != OWN]
    chosen = discover(KubernetesSettings("kubernetes", 120.0, 4000), "ddp", framework, environment)
    assert chosen == HostGroup(hosts, node, 4000)


def test_one_pod_is_this_machine(unknown: Unknown) -> None:
    asked = unknown(0)
    assert discover(CLUSTER, "ddp", "torch", {**JOB, "JOB_COMPLETION_INDEX": "0", "PET_NNODES": "1"}) == HostGroup()
    one = {"VC_TASK_INDEX": "0", "VC_WORKER_HOSTS": "train-worker-0.train"}
    assert discover(CLUSTER, "ddp", "torch", one) == HostGroup()
    assert not asked


def test_names_that_are_known_late(unknown: Unknown) -> None:
    asked = unknown(3)
    group = discover(CLUSTER, "ddp", "torch", JOB)
    assert isinstance(group, HostGroup) and group.hosts == ("train-0.train", OWN, "train-2.train")
    assert asked == ["train-0.train"] * 4 + ["train-2.train"]


def test_a_name_that_stays_unknown(unknown: Unknown) -> None:
    asked = unknown(1_000_000)
    with pytest.raises(UserError) as raised:
        discover(KubernetesSettings("kubernetes", 0.05, None), "ddp", "torch", JOB)
    assert str(raised.value) == (
        "cluster.timeout=0.05: train-0.train has no address here (Name or service not known); see whether its pod runs "
        "and its service selects it"
    )
    assert len(asked) > 1


def test_a_signal_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(host: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("common.cluster.network.find_address_towards", stop)
    with pytest.raises(Interrupted) as raised:
        discover(CLUSTER, "ddp", "torch", JOB)
    assert raised.value.exit_code == 143


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"JOB_COMPLETION_INDEX": "0"},
            "cluster=kubernetes: PET_NNODES, PET_MASTER_ADDR is not set; start in an Indexed Job that sets PET_NNODES "
            "and PET_MASTER_ADDR, or use cluster=local",
        ),
        ({**JOB, "JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX=3: the job has pods 0 to 2"),
        ({**JOB, "JOB_COMPLETION_INDEX": ""}, "JOB_COMPLETION_INDEX=: the job has pods 0 to 2"),
        ({**JOB, "PET_NNODES": "1:3"}, "PET_NNODES=1:3: must be the number of the job's pods"),
        ({**JOB, "PET_NNODES": "0"}, "PET_NNODES=0: must be the number of the job's pods"),
        (
            {**JOB, "PET_MASTER_ADDR": "train-0"},
            "PET_MASTER_ADDR=train-0: must be the first pod's name and its service, such as train-0.train",
        ),
        (
            {**JOB, "PET_MASTER_ADDR": "10.0.0.1"},
            "PET_MASTER_ADDR=10.0.0.1: must be the first pod's name and its service, such as train-0.train",
        ),
        ({**VOLCANO, "VC_TASK_INDEX": "2"}, "VC_TASK_INDEX=2: the job has pods 0 to 1"),
        (
            {"VC_TASK_INDEX": "0"},
            "VC_TASK_INDEX is set but no VC_..._HOSTS; add the plugin svc to the Volcano job",
        ),
        (
            {**VOLCANO, "VC_PS_HOSTS": "train-ps-0.train"},
            "VC_PS_HOSTS, VC_WORKER_HOSTS: must be one; give the Volcano job one task, with a replica for each node",
        ),
        (
            {**JOB, "RANK": "0"},
            "cluster=kubernetes and RANK disagree on who takes part; use cluster=env, or unset RANK",
        ),
    ],
)
def test_bad_input(environment: dict[str, str], expected: str) -> None:
    with pytest.raises(UserError) as raised:
        discover(CLUSTER, "ddp", "torch", environment)
    assert str(raised.value) == expected
