import pytest

from common.cluster.engines.skypilot import discover
from common.cluster.topology import HostGroup, choose_job_port
from common.config.clusters import SkyPilotSettings
from common.errors import UserError

CLUSTER = SkyPilotSettings("skypilot", 120.0, None)
TASK = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_TASK_ID": "sky-1_train-0"}


def test_the_nodes_of_a_task() -> None:
    assert discover(CLUSTER, "ddp", "torch", TASK) == HostGroup(
        ("10.0.0.1", "10.0.0.2"), 1, choose_job_port("sky-1_train-0")
    )
    assert (
        discover(CLUSTER, "ddp", "torch", {**TASK, "SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_NODE_RANK": "0"})
        == HostGroup()
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"SKYPILOT_NODE_RANK": "0"},
            "cluster=skypilot: SKYPILOT_NODE_IPS is not set; start in a SkyPilot task, or use cluster=local",
        ),
        ({**TASK, "SKYPILOT_NODE_RANK": "2"}, "SKYPILOT_NODE_RANK=2: SKYPILOT_NODE_IPS has nodes 0 to 1"),
        (
            {**TASK, "RANK": "0"},
            "cluster=skypilot and RANK disagree on who takes part; use cluster=env, or unset RANK",
        ),
    ],
)
def test_bad_input(environment: dict[str, str], expected: str) -> None:
    with pytest.raises(UserError) as raised:
        discover(CLUSTER, "ddp", "torch", environment)
    assert str(raised.value) == expected
