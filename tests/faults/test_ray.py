"""Runs on a real Ray cluster of three nodes: what ends on one of them, and what is left starts again."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest

from tests.conftest import or_skip, wait_until
from tests.faults.conftest import DDP, MULTIWORKER, Measured, Run, Start, assert_undisturbed, terminate
from tests.ray_cluster import RayCluster, ray_cluster

pytestmark = pytest.mark.faults
MATRIX = pytest.mark.matrix

TF_SERVERS = ("tf", "strategy=parameter_server", "strategy.workers=2", "strategy.max_staleness=0")
TORCH_SERVERS = ("torch", *TF_SERVERS[1:])
RESTARTS = "train.max_restarts=2"
FLOAT64 = "train.precision=float64"


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    yield from or_skip(ray_cluster(3))


@pytest.fixture
def submit(start: Start, ray: RayCluster) -> Callable[..., Run]:
    """Start a run's command on the first node."""
    place = ("cluster=ray", f"cluster.address={ray.address}", "cluster.timeout=60")
    return partial(_submit, start, partial(ray.on, 0), place)


def _submit(start: Start, command: Any, place: tuple[str, ...], *overrides: str, name: str = "") -> Run:
    framework, *rest = overrides
    return start(framework, *rest, *place, command=command, name=name)


@pytest.fixture
def nothing_left(ray: RayCluster) -> Iterator[None]:
    """After the test none of the processes of its runs is left on any node."""
    yield
    wait_until(lambda: not _of_runs(ray), 10)


def _of_runs(ray: RayCluster) -> list[psutil.Process]:
    """The processes of runs."""
    return [process for node in range(ray.count) for process in ray.processes(node) if "_impl." in _command(process)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(TORCH_SERVERS, id="torch"), pytest.param(TF_SERVERS, id="tf", marks=MATRIX)],
)
def test_parameter_servers(
    submit: Callable[..., Run], kind: tuple[str, ...], undisturbed: list[dict[str, Any]], nothing_left: None
) -> None:
    run = submit(*kind)
    said = run.end()
    assert_undisturbed(run, undisturbed, said)
    assert "on 3 node(s) of the Ray cluster: " in said


@pytest.mark.survives("SIGKILL of an actor on a Ray cluster, `train.max_restarts=2`")
@pytest.mark.parametrize(
    "kind",
    [pytest.param(DDP, id="ddp"), pytest.param(MULTIWORKER, id="multiworker", marks=MATRIX)],
)
def test_an_actor_is_killed(
    submit: Callable[..., Run],
    ray: RayCluster,
    kind: tuple[str, ...],
    moment: int,
    undisturbed: list[dict[str, Any]],
    measured: Measured,
    nothing_left: None,
) -> None:
    run = submit(*kind, RESTARTS).at(1)
    actors = [(node, found) for node in range(ray.count) if (found := _actors(ray, node))]  # can take 30 steps
    assert len(actors) == 2
    lost, victims = actors[1]
    run.at(moment).mark()
    for actor in victims:
        actor.kill()
    measured(*run.recover())
    said = run.end()
    assert_undisturbed(run, undisturbed, said)
    assert run.summary["restarts"] == 1
    assert f"node {ray.addresses[lost]} of the Ray cluster was lost; restarting from the newest checkpoint" in said


def _actors(ray: RayCluster, node: int) -> list[psutil.Process]:
    return [process for process in ray.processes(node) if _command(process).startswith("ray::Node")]


@pytest.mark.survives("SIGKILL of the command of a run on a Ray cluster: no process is left; then `resume=auto`")
def test_the_driver_is_killed(
    submit: Callable[..., Run], ray: RayCluster, moment: int, undisturbed: list[dict[str, Any]]
) -> None:
    run = submit(*DDP, name="driver").at(moment)
    run.process.kill()
    wait_until(lambda: not _of_runs(ray), 30)
    run = submit(*DDP, "resume=auto", name="driver")
    assert_undisturbed(run, undisturbed, run.end())


@pytest.mark.survives("SIGTERM or Ctrl-C to the command of a run on a Ray cluster, then another number of replicas")
def test_another_number_of_replicas(submit: Callable[..., Run], start: Start, moment: int, nothing_left: None) -> None:
    """In float64, so that the curves are the same to the last digits."""
    single = start("torch", "strategy=single", FLOAT64)
    for step, replicas, signum in ((moment // 2, 3, signal.SIGINT), (moment, 2, signal.SIGTERM), (None, 4, None)):
        run = submit("torch", "strategy=ddp", f"strategy.replicas={replicas}", FLOAT64, "resume=auto", name="elastic")
        if step is not None and signum is not None:
            terminate(run.at(step), signum)
    said = run.end()
    assert single.end() and single.process.returncode == 0
    assert run.process.returncode == 0, said
    elastic, expected = ([row["loss"] for row in each.rows] for each in (run, single))
    np.testing.assert_allclose(elastic, expected, rtol=0, atol=1e-9)
    assert [change["replicas"] for change in run.summary["replicas_changed"]] == [3, 2, 4]


@pytest.mark.survives("a node of a Ray cluster is lost: SIGKILL of all its processes; the others continue")
@pytest.mark.parametrize("kind", ["ddp", pytest.param("multiworker", marks=MATRIX)])
def test_a_node_is_lost(
    submit: Callable[..., Run],
    ray: RayCluster,
    kind: str,
    moment: int,
    undisturbed: list[dict[str, Any]],
    measured: Measured,
    nothing_left: None,
) -> None:
    framework = {"ddp": "torch", "multiworker": "tf"}[kind]
    run = submit(framework, f"strategy={kind}", RESTARTS).at(moment)
    assert run.rows[0]["replicas"] == 6
    run.mark()
    ray.kill(2)
    try:
        measured(*run.recover())
        said = run.end()
    finally:
        ray.start(2)
    assert_undisturbed(run, undisturbed, said)
    assert [change["replicas"] for change in run.summary["replicas_changed"]] == [6, 4]
    assert "on 2 node(s) of the Ray cluster: " in said
