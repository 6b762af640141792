import socket
from dataclasses import replace
from typing import Any

import pytest

from common.cluster.engines.hosts import discover, find_host_interface
from common.cluster.topology import HostGroup
from common.config.clusters import HostsSettings
from common.errors import UserError

CLUSTER = HostsSettings("hosts", 120.0, ["a", "b"], 1, 29500)


def resolve(monkeypatch: pytest.MonkeyPatch, **addresses: str) -> None:
    """Make these names known, and no others."""

    def look_up(host: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        if host not in addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (addresses[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr("common.cluster.network.find_address_towards", lambda host: f"towards {host}")


@pytest.mark.parametrize(("address", "hostname"), [("127.0.1.1", "x"), ("127.0.0.1", "a")])
def test_a_host_whose_own_name_is_a_loopback_address(
    monkeypatch: pytest.MonkeyPatch, address: str, hostname: str
) -> None:
    """The first host takes its address on the way to another one. On the other hosts its name has another meaning."""
    monkeypatch.setattr("common.cluster.engines.hosts.find_host_interface", lambda host: "eth0")
    monkeypatch.setattr(socket, "gethostname", lambda: hostname)
    resolve(monkeypatch, a=address, b="10.0.0.2")
    group = discover(replace(CLUSTER, node=0), "ddp", "torch", {})
    assert group == HostGroup(("towards b", "b"), 0, 29500)
    resolve(monkeypatch, a="10.0.0.1", b="10.0.0.2")
    assert discover(CLUSTER, "ddp", "torch", {}) == HostGroup(("a", "b"), 1, 29500)


@pytest.mark.parametrize("host", ["203.0.113.1", "127.0.0.1", "localhost"])
def test_a_host_must_have_its_address_in_a_network(host: str) -> None:
    with pytest.raises(UserError, match=rf"^cluster.node: {host}.* is not a network address of this machine"):
        find_host_interface(host)


def test_a_host_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(UserError) as raised:
        find_host_interface("nowhere")
    assert str(raised.value) == "cluster.hosts: nowhere has no address (Name or service not known); give its address"


def test_the_hosts_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("common.cluster.engines.hosts.find_host_interface", asked.append)
    resolve(monkeypatch, b="10.0.0.2")
    assert discover(CLUSTER, "ddp", "torch", {"TF_CONFIG": "{}"}) == HostGroup(("a", "b"), 1, 29500)
    assert asked == ["b"], "this machine must be the second host"


@pytest.mark.parametrize(("framework", "variable"), [("torch", "RANK"), ("tf", "TF_CONFIG")])
def test_a_scheduler_that_says_otherwise(framework: str, variable: str) -> None:
    with pytest.raises(UserError) as raised:
        discover(CLUSTER, "parameter_server", framework, {variable: "0"})
    assert str(raised.value) == (
        f"cluster=hosts and {variable} disagree on who takes part; use cluster=env, or unset {variable}"
    )
