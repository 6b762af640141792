import socket
from typing import Any

import pytest

from common.cluster.network import address_towards, interface_towards, interface_with, loopback_interface


def test_the_loopback_interface() -> None:
    assert interface_with(["203.0.113.1", "127.0.0.1"]) == loopback_interface()
    assert interface_with(["203.0.113.1"]) is None
    assert address_towards("localhost") in ("127.0.0.1", "::1")
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert interface_towards("127.0.0.1") == loopback_interface()


def test_a_host_that_no_interface_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert interface_towards("nowhere") is None
    with pytest.raises(OSError):
        address_towards("nowhere")
