"""Faults of runs on a real Ray cluster of three nodes."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest

from tests.conftest import or_skip, wait_until
from tests.faults.conftest import DDP, MULTIWORKER, RecordFigures, Run, Start, assert_same_curve, terminate
from tests.ray_cluster import RayCluster, ray_cluster

pytestmark = pytest.mark.faults
MATRIX = pytest.mark.matrix

TF_SERVERS = ("tf", "strategy=parameter_server", "strategy.workers=2", "strategy.max_staleness=0")
TORCH_SERVERS = ("torch", *TF_SERVERS[1:])
RESTARTS = "train.max_restarts=2"
FLOAT64 = "train.precision=float64"


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    """A Ray cluster that all tests of this file share."""
    yield from or_skip(ray_cluster(3))


@pytest.fixture
def submit(start: Start, ray: RayCluster) -> Callable[..., Run]:
    """Start a run's command on the first node."""
    cluster = ("cluster=ray", f"cluster.address={ray.address}", "cluster.timeout=60")
    return lambda *overrides, name="": start(*overrides, *cluster, command=partial(ray.wrap_command, 0), name=name)


@pytest.fixture
def no_leftovers(ray: RayCluster) -> Iterator[None]:
    """A check after the test that no process of its runs is left on any node."""
    yield
    wait_until(lambda: not _find_processes(ray))


def _find_processes(ray: RayCluster) -> list[psutil.Process]:
    """Return the processes of runs on all nodes."""
    processes = [process for node in range(ray.count) for process in ray.list_processes(node)]
    return [process for process in processes if "_impl." in _read_command(process)]


def _read_command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(TORCH_SERVERS, id="torch", marks=MATRIX), pytest.param(TF_SERVERS, id="tf", marks=MATRIX)],
)
def test_parameter_servers(
    submit: Callable[..., Run], kind: tuple[str, ...], reference_rows: list[dict[str, Any]], no_leftovers: None
) -> None:
    run = submit(*kind)
    output = run.wait_for_end()
    assert_same_curve(run, reference_rows, output)
    assert "on 3 node(s) of the Ray cluster: " in output


@MATRIX  # CI loses a node with its actor
@pytest.mark.survives("SIGKILL of an actor on a Ray cluster, `train.max_restarts=2`")
@pytest.mark.parametrize("kind", [pytest.param(DDP, id="ddp"), pytest.param(MULTIWORKER, id="multiworker")])
def test_an_actor_is_killed(
    submit: Callable[..., Run],
    ray: RayCluster,
    kind: tuple[str, ...],
    fault_step: int,
    reference_rows: list[dict[str, Any]],
    record_figures: RecordFigures,
    no_leftovers: None,
) -> None:
    run = submit(*kind, RESTARTS).wait_for_step(1)  # the search for the actors can take 30 steps
    actors = {node: processes for node in range(ray.count) if (processes := _find_actors(ray, node))}
    assert len(actors) == 2
    lost_node = max(actors)
    run.wait_for_step(fault_step).mark_fault()
    for actor in actors[lost_node]:
        actor.kill()
    record_figures(*run.wait_for_recovery())
    output = run.wait_for_end()
    assert_same_curve(run, reference_rows, output)
    assert run.summary["restarts"] == 1
    assert (
        f"node {ray.addresses[lost_node]} of the Ray cluster was lost; restarting from the newest checkpoint" in output
    )


def _find_actors(ray: RayCluster, node: int) -> list[psutil.Process]:
    """Return the processes of the actors on a node."""
    return [process for process in ray.list_processes(node) if _read_command(process).startswith("ray::Node")]


@pytest.mark.survives("SIGKILL of the command of a run on a Ray cluster: no process is left; then `resume=auto`")
def test_the_driver_is_killed(
    submit: Callable[..., Run], ray: RayCluster, fault_step: int, reference_rows: list[dict[str, Any]]
) -> None:
    run = submit(*DDP, name="driver").wait_for_step(fault_step)
    run.process.kill()
    wait_until(lambda: not _find_processes(ray))
    run = submit(*DDP, "resume=auto", name="driver")
    assert_same_curve(run, reference_rows, run.wait_for_end())


@MATRIX
@pytest.mark.survives("SIGTERM or Ctrl-C to the command of a run on a Ray cluster, then another number of replicas")
def test_another_number_of_replicas(
    submit: Callable[..., Run], start: Start, fault_step: int, no_leftovers: None
) -> None:
    """Float64 keeps the curves equal to the last digits."""
    single = start("torch", "strategy=single", FLOAT64)
    for step, replicas, signum in (
        (fault_step // 2, 3, signal.SIGINT),
        (fault_step, 2, signal.SIGTERM),
        (None, 4, None),
    ):
        run = submit("torch", "strategy=ddp", f"strategy.replicas={replicas}", FLOAT64, "resume=auto", name="elastic")
        if step is not None and signum is not None:
            terminate(run.wait_for_step(step), signum)
    output = run.wait_for_end()
    assert single.wait_for_end() and single.process.returncode == 0
    assert run.process.returncode == 0, output
    elastic, expected = ([row["loss"] for row in completed.rows] for completed in (run, single))
    np.testing.assert_allclose(elastic, expected, rtol=0, atol=1e-9)
    assert [change["replicas"] for change in run.summary["replicas_changed"]] == [3, 2, 4]


@pytest.mark.survives("a node of a Ray cluster is lost: SIGKILL of all its processes; the others continue")
@pytest.mark.parametrize("kind", ["ddp", pytest.param("multiworker", marks=MATRIX)])
def test_a_node_is_lost(
    submit: Callable[..., Run],
    ray: RayCluster,
    kind: str,
    fault_step: int,
    reference_rows: list[dict[str, Any]],
    record_figures: RecordFigures,
    no_leftovers: None,
) -> None:
    framework = {"ddp": "torch", "multiworker": "tf"}[kind]
    run = submit(framework, f"strategy={kind}", RESTARTS).wait_for_step(fault_step)
    assert run.rows[0]["replicas"] == 6
    run.mark_fault()
    ray.kill(2)
    try:
        record_figures(*run.wait_for_recovery())
        output = run.wait_for_end()
    finally:
        ray.start(2)
    assert_same_curve(run, reference_rows, output)
    assert [change["replicas"] for change in run.summary["replicas_changed"]] == [6, 4]
    assert "on 2 node(s) of the Ray cluster: " in output
