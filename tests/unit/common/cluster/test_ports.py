import socket

import pytest

from common.cluster.ports import check_ports, reserve_ports
from common.errors import UserError


def test_reserved_ports_cannot_be_taken() -> None:
    with reserve_ports(3) as ports:
        assert len(set(ports)) == 3
        for port in ports:
            with socket.socket() as other, pytest.raises(OSError):
                other.bind(("", port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("", ports[0]))  # gRPC binds in the same way
    check_ports(ports)


def test_a_port_in_use() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"^cluster.port: port {port} is in use on this host \(.+\); choose another$"
        ):
            check_ports([port])
    check_ports([port])
