"""The store of a run: a dictionary that all ranks share and that they use to find each other."""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Thread

import torch.distributed as dist

from common.errors import PeerTimeout, UserError, one_line
from common.run.summary import RESTARTS_VARIABLE

POLL_SECONDS = 0.05


def open_store(rank: int, world_size: int, timeout: float) -> dist.Store:
    """Open the store of a run: a file if all ranks are on one host, else a server of rank 0 or of torchrun."""
    if (path := os.environ.get("LOCKSTEP_RENDEZVOUS")) is not None:
        return dist.FileStore(
            f"{path}-{os.environ.get(RESTARTS_VARIABLE, 0)}", world_size
        )  # a new file after each restart
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # The variable is "True" if an agent of torchrun serves the store.
    is_server = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def open_tcp_store() -> dist.Store:
        return dist.TCPStore(
            address, port, world_size, is_server, timedelta(seconds=timeout), wait_for_workers=False, multi_tenant=True
        )

    if not is_server:
        return _connect_to_store(address, port, timeout, open_tcp_store)
    try:
        return open_tcp_store()
    except RuntimeError as error:
        raise UserError(f"MASTER_PORT={port}: cannot listen on it ({one_line(error)}); choose another port") from error


def _connect_to_store(address: str, port: int, timeout: float, open_tcp_store: Callable[[], dist.Store]) -> dist.Store:
    """Connect to the store that rank 0 or torchrun serves.

    TCPStore by itself waits up to twice the timeout and prints stack traces if nobody listens. It waits forever if
    another program listens.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((address, port), max(POLL_SECONDS, end - time.monotonic())).close()
            break
        except OSError as error:
            if time.monotonic() > end:
                raise PeerTimeout(
                    f"cluster.timeout={timeout:g}: rank 0 did not arrive in time ({address}:{port}: {error})"
                ) from error
        time.sleep(POLL_SECONDS)
    stores: list[dist.Store] = []

    def connect() -> None:
        with suppress(RuntimeError):
            stores.append(open_tcp_store())

    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(max(1.0, end - time.monotonic()))
    if not stores and not thread.is_alive():
        raise PeerTimeout(f"rank 0 ended before this rank had connected to it ({address}:{port}); see its error")
    if not stores:
        raise UserError(f"MASTER_PORT={port}: another program listens at {address}, not rank 0; choose another port")
    return stores[0]
