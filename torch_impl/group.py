"""Meet the other processes of a run."""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Thread

import torch.distributed as dist

from common.errors import UserError

POLL_SECONDS = 0.05


def join_group(timeout: float, backend: str = "gloo") -> tuple[int, int]:
    """Become a rank of the run's process group, as RANK and WORLD_SIZE say. Returns both.

    Raises UserError naming the ranks that have not come after `timeout` seconds.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _meeting_place(rank, world_size, timeout)
    if missing := _absent(store, rank, world_size, timeout):
        raise UserError(f"cluster.timeout={timeout:g}: {_ranks(missing)} of {world_size} did not come in time")
    try:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout),
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"rank {rank} cannot connect to the other ranks within {timeout:g} s ({reason})") from error
    return rank, world_size


def _meeting_place(rank: int, world_size: int, timeout: float) -> dist.Store:
    """A file for the ranks of one machine, else a server at MASTER_ADDR that rank 0 or torchrun starts."""
    if (path := os.environ.get("LOCKSTEP_RENDEZVOUS")) is not None:
        return dist.FileStore(path, world_size)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def make() -> dist.Store:
        return dist.TCPStore(
            address, port, world_size, serves, timedelta(seconds=timeout), wait_for_workers=False, multi_tenant=True
        )

    if not serves:
        return _connect(address, port, timeout, make)
    try:
        return make()
    except RuntimeError as error:
        raise UserError(f"MASTER_PORT={port}: cannot listen there ({' '.join(str(error).split())})") from error


def _connect(address: str, port: int, timeout: float, make: Callable[[], dist.Store]) -> dist.Store:
    """The store that rank 0 or torchrun serves.

    By itself TCPStore waits for a server up to twice as long and prints stack traces, and for ever where something else
    listens.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((address, port), max(POLL_SECONDS, end - time.monotonic())).close()
            break
        except OSError as error:
            if time.monotonic() > end:
                raise UserError(
                    f"cluster.timeout={timeout:g}: rank 0 did not come in time ({address}:{port}: {error})"
                ) from error
        time.sleep(POLL_SECONDS)
    found: list[dist.Store] = []

    def connect() -> None:
        with suppress(RuntimeError):
            found.append(make())

    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(max(1.0, end - time.monotonic()))
    if not found:
        raise UserError(f"MASTER_PORT={port}: what listens at {address} is not rank 0; give both another port")
    return found[0]


def _absent(store: dist.Store, rank: int, world_size: int, timeout: float) -> list[int]:
    """Say that this rank is here and wait for the others. Returns those that have not come when the time is up.

    The first whose time is up says so to all, and stays until they have read it, since rank 0 takes the server with it.
    """
    end = time.monotonic() + timeout
    store.set(f"here/{rank}", "")
    while absent := [other for other in range(world_size) if not store.check([f"here/{other}"])]:
        if time.monotonic() > end or store.check(["over"]):
            store.set("over", "")
            time.sleep(10 * POLL_SECONDS)
            break
        time.sleep(POLL_SECONDS)
    return absent


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
