"""Meet the other processes of a run."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any

import torch.distributed as dist

from common.cluster.agreement import disagreement
from common.cluster.processes import RESTARTS, RETURNED
from common.errors import UserError

POLL_SECONDS = 0.05


def join_group(timeout: float, settings: Mapping[str, Any], backend: str = "gloo") -> tuple[int, int]:
    """Become a rank of the run's process group. Returns rank and world size. Raises UserError as `meet` does."""
    rank, world_size, store = meet(timeout, settings)
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


def meet(timeout: float, settings: Mapping[str, Any]) -> tuple[int, int, dist.Store]:
    """Wait for the other ranks of the run, as RANK and WORLD_SIZE say. Returns both, and a store that all share.

    Raises UserError naming the ranks that have not come after `timeout` seconds, or the settings that a rank has
    otherwise than rank 0.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _meeting_place(rank, world_size, timeout)
    if RETURNED in os.environ:  # the others have met
        return rank, world_size, store
    try:
        problem = _meet(store, rank, world_size, timeout, settings)
    except RuntimeError as error:
        raise UserError(f"rank 0 left before all {world_size} ranks had come") from error
    if problem is not None:
        raise UserError(problem)
    return rank, world_size, store


def _meeting_place(rank: int, world_size: int, timeout: float) -> dist.Store:
    """A file for the ranks of one machine, else a server at MASTER_ADDR that rank 0 or torchrun starts."""
    if (path := os.environ.get("LOCKSTEP_RENDEZVOUS")) is not None:
        return dist.FileStore(f"{path}-{os.environ.get(RESTARTS, 0)}", world_size)
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


def _meet(store: dist.Store, rank: int, world_size: int, timeout: float, settings: Mapping[str, Any]) -> str | None:
    """Say that this rank is here and wait for the others. Returns why they cannot begin, or None.

    The first to know it says so to all. They stay until all have read it, since rank 0 takes the server with it.
    """
    end = time.monotonic() + timeout
    here = {rank: settings}
    problem = None
    store.set(f"here/{rank}", json.dumps(settings))
    while problem is None:
        absent = [other for other in range(world_size) if other not in here]
        for other in absent:
            if store.check([f"here/{other}"]):
                here[other] = json.loads(store.get(f"here/{other}"))
        if store.check(["over"]):
            problem = store.get("over").decode()
        elif problem := next(filter(None, (_disagrees(other, here) for other in here)), None):
            store.set("over", problem)
        elif not absent:
            return None
        elif time.monotonic() > end:
            problem = f"cluster.timeout={timeout:g}: {_ranks(absent)} of {world_size} did not come in time"
            store.set("over", problem)
        else:
            time.sleep(POLL_SECONDS)
    time.sleep(10 * POLL_SECONDS)
    return problem


def _disagrees(rank: int, here: Mapping[int, Mapping[str, Any]]) -> str | None:
    return disagreement(f"rank {rank}", here[rank], "rank 0", here[0]) if 0 in here else None


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
