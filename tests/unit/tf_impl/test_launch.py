from typing import cast

import pytest

from common.cluster.supervisor import Process
from common.cluster.topology import HostGroup
from common.run.context import RunContext
from common.run.inputs import PreparedInputs
from tests.conftest import MakeConfig
from tf_impl import launch


@pytest.mark.parametrize(("set_by_user", "expected"), [(None, "4"), ("3", "3")])
def test_the_number_of_threads_of_the_user_is_kept(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, set_by_user: str | None, expected: str
) -> None:
    processes: list[Process] = []

    def start(context: RunContext, hosts: HostGroup, local_processes: list[Process]) -> int:
        processes.extend(local_processes)
        return 0

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr("common.cluster.local_processes.count_cores", lambda: 8)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    if set_by_user is not None:
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", set_by_user)
    config = small_config("strategy=multiworker", "strategy.replicas=2", "run_dir=run")
    assert launch.launch(RunContext(config, "tf", cast(PreparedInputs, None)), HostGroup()) == 0
    assert [process.environment["TF_NUM_INTRAOP_THREADS"] for process in processes] == [expected, expected]
