import socket
import time
from typing import Any

import pytest

from common.cluster import network
from common.cluster.network import (
    find_address_towards,
    find_interface_towards,
    find_interface_with,
    find_loopback_interface,
    resolve_addresses,
)
from common.errors import UserError


def test_the_loopback_interface() -> None:
    assert find_interface_with(["203.0.113.1", "127.0.0.1"]) == find_loopback_interface()
    assert find_interface_with(["203.0.113.1"]) is None
    assert find_address_towards("localhost") in ("127.0.0.1", "::1")
    assert find_address_towards("127.0.0.1") == "127.0.0.1"
    assert find_interface_towards("127.0.0.1") == find_loopback_interface()


def test_a_host_that_no_interface_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert find_interface_towards("nowhere") is None
    with pytest.raises(OSError):
        find_address_towards("nowhere")


def test_a_name_that_becomes_known(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Any] = [
        socket.gaierror(-2, "Name or service not known"),
        OSError(101, "Network is unreachable"),
        "10.0.0.7",
    ]

    def look_up(host: str) -> str:
        result = results.pop(0) if len(results) > 1 else results[0]
        if isinstance(result, OSError):
            raise result
        return str(result)

    monkeypatch.setattr(network, "find_address_towards", look_up)
    monkeypatch.setattr(network, "POLL_SECONDS", 0.01)
    assert network.wait_for_address("a", time.monotonic() + 60) == "10.0.0.7"
    results[:] = [socket.gaierror(-2, "Name or service not known")]
    with pytest.raises(OSError, match="not known"):
        network.wait_for_address("a", time.monotonic() + 0.05)


def test_the_addresses_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may resolve its own name to 127.0.1.1, which Debian's installer writes to /etc/hosts."""
    known = {"a": "127.0.1.1", "b": "10.0.0.2", "c": "10.0.0.3"}

    def resolve(host: str, *_: Any) -> list[tuple[Any, ...]]:
        if host not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (known[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr("common.cluster.network.find_address_towards", lambda host: f"towards {host}")
    assert resolve_addresses(["a", "b", "c"], 0) == ("towards b", "10.0.0.2", "10.0.0.3")
    assert resolve_addresses(["b", "a", "c"], 1) == ("10.0.0.2", "towards b", "10.0.0.3")
    with pytest.raises(
        UserError, match=r"^x: has no address here \(Name or service not known\); its name must be known"
    ):
        resolve_addresses(["a", "x"], 0)
