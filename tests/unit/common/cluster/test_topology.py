import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.cluster.topology import HostGroup, choose_job_port, make_tf_config, make_torch_environment, place_processes


def test_workers_and_servers_are_on_different_hosts() -> None:
    tasks = place_processes(["a", "b"], {"chief": 1, "ps": 1, "worker": 1}, range(1, 10))
    assert [(task.role, task.host_index, task.address) for task in tasks] == [
        ("chief", 0, "a:1"),
        ("ps", 0, "a:2"),
        ("worker", 1, "b:1"),
    ]


@pytest.mark.parametrize(
    ("hosts", "workers", "nodes"),
    [(["a"], 3, [0, 0, 0]), (["a", "b"], 4, [0, 0, 1, 1]), (["a", "b"], 3, [0, 0, 1]), (["a", "b", "c"], 3, [0, 1, 2])],
)
def test_the_tasks_of_a_role_are_in_blocks(hosts: list[str], workers: int, nodes: list[int]) -> None:
    tasks = place_processes(hosts, {"worker": workers}, range(5, 20))
    assert [task.host_index for task in tasks] == nodes
    assert [str(task) for task in tasks] == [f"worker {index}" for index in range(workers)]
    assert len({task.address for task in tasks}) == workers


def test_variables_of_pytorch() -> None:
    tasks = place_processes(["fe80::1", "b"], {"worker": 3}, [29500, 29501])
    assert make_torch_environment(tasks, tasks[1]) == {
        "RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "fe80::1",
        "MASTER_PORT": "29500",
    }
    assert make_torch_environment(tasks, tasks[2])["LOCAL_RANK"] == "0"
    assert tasks[1].address == "[fe80::1]:29501"


def test_variable_of_tensorflow() -> None:
    tasks = place_processes(["a", "b"], {"chief": 1, "ps": 1, "worker": 2}, range(1, 10))
    assert json.loads(make_tf_config(tasks, tasks[3])["TF_CONFIG"]) == {
        "cluster": {"chief": ["a:1"], "ps": ["a:2"], "worker": ["b:1", "a:3"]},
        "task": {"type": "worker", "index": 1},
    }


def test_several_hosts_have_ports() -> None:
    assert not HostGroup().is_multi_host
    nodes = HostGroup(("a",), 0, 29500)  # even a list of one host is a run that the user starts on every host
    assert nodes.is_multi_host and nodes.ports[0] == 29500


@given(job=st.integers(0, 10**9))
def test_jobs_with_ids_in_a_row_have_ports_of_their_own(job: int) -> None:
    ports = [choose_job_port(str(each)) for each in range(job, job + 100)]
    assert len(set(ports)) == 100
    assert min(ports) >= 10_000 and max(ports) + 200 <= 32_768
    assert all(abs(a - b) >= 200 for a, b in pairwise(ports))
    assert choose_job_port("sky-2026_a-0") != choose_job_port("sky-2026_a-1")
