from typing import cast

import pytest

from common.cluster.network import find_loopback_interface
from common.cluster.supervisor import Process
from common.cluster.topology import HostGroup
from common.run.context import RunContext
from common.run.inputs import PreparedInputs
from tests.conftest import MakeConfig
from torch_impl import launch

VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
TWO_HOSTS = HostGroup(("10.0.0.1", "10.0.0.2"), 0, 29_500)
LOOPBACK = find_loopback_interface()


@pytest.mark.parametrize(
    ("hosts", "set_by_user", "expected"),
    [
        (TWO_HOSTS, {}, ("8", "PASSIVE", "eth7", "eth7")),
        (TWO_HOSTS, dict.fromkeys(VARIABLES, "mine"), ("mine", "mine", "mine", "mine")),
        (HostGroup(), {}, ("4", "PASSIVE", LOOPBACK, None)),
        (HostGroup(), dict.fromkeys(VARIABLES, "mine"), ("mine", "mine", LOOPBACK, None)),
    ],
)
def test_variables_of_the_user_are_kept(
    small_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    hosts: HostGroup,
    set_by_user: dict[str, str],
    expected: tuple[str | None, ...],
) -> None:
    processes: list[Process] = []

    def start(context: RunContext, hosts: HostGroup, local_processes: list[Process]) -> int:
        processes.extend(local_processes)
        return 0

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr(launch, "find_host_interface", lambda host: "eth7")
    monkeypatch.setattr("common.cluster.local_processes.count_cores", lambda: 8)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in set_by_user.items():
        monkeypatch.setenv(name, value)
    config = small_config("strategy=ddp", "strategy.replicas=2", "run_dir=run")
    assert launch.launch(RunContext(config, "torch", cast(PreparedInputs, None)), hosts) == 0
    for process in processes:
        assert tuple(process.environment.get(name) for name in VARIABLES) == expected
