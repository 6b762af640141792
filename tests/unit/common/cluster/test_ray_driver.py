import pytest

from common.cluster import ray_driver
from common.cluster.engines.ray import RayNodeInfo
from common.cluster.ray_driver import LOWEST_PORT, _conclude, _plan_bundles
from common.cluster.supervisor import Outcome
from common.cluster.topology import choose_job_port
from common.training.stop import Stop
from tests.conftest import MakeConfig

HOSTS = ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((0, 0), Outcome(0, None)),
        ((0, None), Outcome(0, None)),  # the chief completed, so the run does not need the other
        ((1, 2), Outcome(2, None)),  # only the second host could detect the mistake
        ((2, 1), Outcome(2, None)),
        ((143, 143), Outcome(143, None)),  # an external signal stopped the commands on the nodes
        ((1, 143), Outcome(143, None)),
        ((1, 137), Outcome(1, "the command on 10.0.0.2 ended with exit code 137")),  # possibly out of memory
        ((139, 1), Outcome(1, "the command on 10.0.0.1 ended with exit code 139")),
        ((1, 1), Outcome(1, "the command on 10.0.0.1 ended with exit code 1")),
        ((1, None), Outcome(1, "node 10.0.0.2 of the Ray cluster was lost")),
        ((None, 1), Outcome(1, "node 10.0.0.1 of the Ray cluster was lost")),
        ((None, None), Outcome(1, "node 10.0.0.1 of the Ray cluster was lost")),
    ],
)
def test_how_an_attempt_ends(codes: tuple[int | None, ...], expected: Outcome) -> None:
    ended = {host: code for host, code in zip(HOSTS, codes, strict=True) if code is not None}
    stop = Stop()
    try:
        outcome = _conclude(HOSTS, ended, stop)
        assert outcome.exit_code == expected.exit_code
        assert expected.problem is None or outcome.problem == expected.problem
        stop.request(15)
        assert _conclude(HOSTS, ended, stop).exit_code == (outcome.exit_code if outcome.exit_code in (0, 2) else 143)
    finally:
        stop.restore()


def node(address: str, **resources: float) -> RayNodeInfo:
    return {"NodeManagerAddress": address, "Alive": True, "Resources": resources}


@pytest.mark.parametrize(
    ("overrides", "nodes", "expected"),
    [
        # The run uses all available nodes, including the node that has the run directory.
        (["strategy=ddp"], [node("a", CPU=8), node("b", CPU=4)], [{"CPU": 2}, {"CPU": 2, "node:b": 0.001}]),
        (["strategy=ddp", "strategy.replicas=12"], [node("a", CPU=8), node("b", CPU=4)], [{"CPU": 4}, {"CPU": 4}]),
        (["strategy=ddp", "strategy.replicas=1"], [node("a", CPU=8), node("b", CPU=4)], [{"CPU": 1}]),
        (["strategy=ddp"], [node("a", CPU=8, GPU=4), node("b", CPU=8, GPU=2)], [{"CPU": 2, "GPU": 2}] * 2),
        (["strategy=ddp", "strategy.replicas=3"], [node("a", CPU=8, GPU=4)] * 2, [{"CPU": 2, "GPU": 2}] * 2),
        (["strategy=dp", "strategy.replicas=3"], [node("a", CPU=8)] * 2, [{"CPU": 3}]),
        (["strategy=ddp"], [node("a", CPU=8, GPU=4)], [{"CPU": 2}]),  # train.device=cpu
        # The nodes with GPUs are lost, and no other node has the resources that the run requests.
        (["strategy=ddp"], [node("a", CPU=8)], [{"CPU": 2, "GPU": 2}]),
        (["strategy=ddp"], [], [{"CPU": 1, "GPU": 2}]),
        (["strategy=ddp", "strategy.replicas=3"], [], [{"CPU": 1}]),  # no node has these resources yet
    ],
)
def test_the_room_that_a_run_needs(
    make_config: MakeConfig, overrides: list[str], nodes: list[RayNodeInfo], expected: list[dict[str, float]]
) -> None:
    gpus = any("GPU" in bundle for bundle in expected)
    bundles = _plan_bundles(make_config(*overrides).strategy, gpus, "b", nodes)
    assert len(bundles) == len(expected)
    assert [{**bundle, "node:b": 0} for bundle in bundles] == [{**bundle, "node:b": 0} for bundle in expected]
    pinned = [bundle for bundle in bundles if "node:b" in bundle]
    assert len(pinned) == ("b" in {each["NodeManagerAddress"] for each in nodes})


def test_jobs_in_a_row_do_not_share_ports() -> None:
    ports = [choose_job_port(str(job), LOWEST_PORT) for job in range(1, 60)]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= LOWEST_PORT and max(ports) < 32_000
    assert ray_driver.LOWEST_PORT > 19_999  # 19999 is the last port of Ray's workers
