import importlib.util
import socket

import pytest

from common.cluster.engines import ray as engine
from common.cluster.engines.ray import RayNodeInfo, count_on_every_node, discover, list_usable_nodes
from common.cluster.topology import RayNodes
from common.config.clusters import AutoSettings, RaySettings
from common.errors import UserError


def node(alive: bool = True, **resources: float) -> RayNodeInfo:
    return {"NodeManagerAddress": "a", "Alive": alive, "Resources": resources}


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of addresses that discovery connects to."""
    addresses: list[str] = []
    monkeypatch.setattr(engine, "_connect", lambda kind, name, address: addresses.append(f"{name}={address}"))
    monkeypatch.setattr("ray.nodes", lambda: [node(CPU=2), node(CPU=0, GPU=0), node(False, CPU=2), node(CPU=4.0)])
    return addresses


def test_what_the_cluster_has(connected: list[str]) -> None:
    assert discover(RaySettings("ray", 9.0, None, "a:1"), "ddp", "torch", {}) == RayNodes(2, 0)
    assert discover(AutoSettings("auto", 9.0, None), "ddp", "torch", {"RAY_ADDRESS": "b:1"}) == RayNodes(2, 0)
    assert discover(RaySettings("ray", 9.0, None, "auto"), "ddp", "torch", {"RAY_ADDRESS": "c:1"}) == RayNodes(2, 0)
    assert discover(RaySettings("ray", 9.0, None, "auto"), "ddp", "torch", {}) == RayNodes(2, 0)
    assert connected == ["cluster.address=a:1", "RAY_ADDRESS=b:1", "RAY_ADDRESS=c:1", "cluster.address=auto"]


def test_nodes_with_gpus_are_taken_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    having = [node(CPU=8, GPU=4), node(CPU=8, GPU=2)]
    monkeypatch.setattr("ray.nodes", lambda: [node(CPU=2), *having])
    assert list_usable_nodes() == having
    assert (count_on_every_node(having, "GPU"), count_on_every_node(having, "CPU"), count_on_every_node([], "CPU")) == (
        2,
        8,
        0,
    )


def test_a_cluster_without_nodes(connected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.nodes", lambda: [node(CPU=0)])
    with pytest.raises(UserError, match=r"^cluster=ray: no node of the Ray cluster has a CPU or GPU; "):
        discover(RaySettings("ray", 9.0, None, "auto"), "ddp", "torch", {})


def test_a_process_that_another_launcher_started() -> None:
    with pytest.raises(UserError, match=r"^cluster=ray and RANK disagree"):
        discover(RaySettings("ray", 9.0, None, "auto"), "ddp", "torch", {"RANK": "0"})


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^cluster=ray: the package ray is not installed; pip install ray$"):
        discover(RaySettings("ray", 9.0, None, "auto"), "ddp", "torch", {})


def test_rays_client() -> None:
    with pytest.raises(UserError, match=r"^cluster.address=ray://a:10001: must be host:port or auto; "):
        discover(RaySettings("ray", 9.0, None, "ray://a:10001"), "ddp", "torch", {})


def test_nothing_answers() -> None:
    """Without the check, Ray would wait forever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(UserError, match=rf"^cluster.address={address}: no Ray cluster here \(Connection refused\); "):
        discover(RaySettings("ray", 9.0, None, address), "ddp", "torch", {})


def test_no_address() -> None:
    with pytest.raises(UserError, match=r"^cluster.address=abc: no Ray cluster here \(.+\); "):
        discover(RaySettings("ray", 9.0, None, "abc"), "ddp", "torch", {})
