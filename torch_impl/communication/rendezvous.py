"""Rendezvous: wait for the other processes of a run, and agree with them on what to train."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread
from typing import Any

import torch.distributed as dist

from common.cluster.agreement import collect_shared_settings, decode_error, describe_disagreement, encode_error
from common.cluster.network import find_address_towards
from common.cluster.processes import IS_REPLACEMENT, STOP_PORT
from common.cluster.stop_member import StopMember
from common.cluster.stop_server import StopServer
from common.errors import PeerTimeout, UserError, one_line
from common.run.context import RunContext
from common.run.summary import RESTARTS

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Group:
    """The ranks of a run. store: shared by all. channel: over which they agree on a stop. Both None for one alone."""

    rank: int
    world_size: int
    store: dist.Store | None
    channel: StopServer | StopMember | None


def join_group(context: RunContext) -> Group:
    """Wait for the other ranks of a run, if it has any. Raises PeerTimeout and UserError as `rendezvous` does."""
    if context.config.strategy.one_process:
        return Group(0, 1, None, None)
    return rendezvous(context.config.cluster.timeout, collect_shared_settings(context))


def rendezvous(timeout: float, settings: Mapping[str, Any]) -> Group:
    """Wait for the other ranks, as RANK and WORLD_SIZE say.

    Raises PeerTimeout naming the ranks that did not arrive within `timeout` seconds, and UserError naming the settings
    in which a rank differs from rank 0.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _shared_store(rank, world_size, timeout)
    if IS_REPLACEMENT not in os.environ:  # else the others are past this
        try:
            problem = _wait_for_all(store, rank, world_size, timeout, settings)
        except RuntimeError as error:
            raise PeerTimeout(f"rank 0 left before all {world_size} ranks had arrived; see its error") from error
        if problem is not None:
            raise problem
    return Group(rank, world_size, store, _open_channel(store, rank))


def init_process_group(group: Group, timeout: float, backend: str) -> None:
    """Make the ranks of a group a process group, whose collectives time out after N seconds. Raises PeerTimeout."""
    assert group.store is not None
    try:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", group.store),
            rank=group.rank,
            world_size=group.world_size,
            timeout=timedelta(seconds=timeout),
        )
    except RuntimeError as error:
        reason = one_line(error)
        message = f"rank {group.rank} cannot connect to the other ranks within {timeout:g} s ({reason})"
        raise PeerTimeout(message) from error  # one of them has ended since


def _open_channel(store: dist.Store, rank: int) -> StopServer | StopMember:
    if rank == 0:
        server = StopServer(find_address_towards(os.environ["MASTER_ADDR"]), int(os.environ.get(STOP_PORT, 0)))
        store.set("stop", json.dumps(server.address))
        return server
    host, port, token = json.loads(store.get("stop"))
    return StopMember((host, port, token), f"rank {rank}")


def _shared_store(rank: int, world_size: int, timeout: float) -> dist.Store:
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
        raise UserError(f"MASTER_PORT={port}: cannot listen there ({one_line(error)}); give another") from error


def _connect(address: str, port: int, timeout: float, make: Callable[[], dist.Store]) -> dist.Store:
    """The store that rank 0 or torchrun serves.

    TCPStore alone waits for a server up to twice as long and prints stack traces, and forever where something else
    listens.
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
    found: list[dist.Store] = []

    def connect() -> None:
        with suppress(RuntimeError):
            found.append(make())

    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(max(1.0, end - time.monotonic()))
    if not found and not thread.is_alive():
        raise PeerTimeout(f"rank 0 left before this one had connected to it ({address}:{port}); see its error")
    if not found:
        raise UserError(f"MASTER_PORT={port}: what listens at {address} is not rank 0; give both another port")
    return found[0]


def _wait_for_all(
    store: dist.Store, rank: int, world_size: int, timeout: float, settings: Mapping[str, Any]
) -> UserError | None:
    """Announce this rank and wait for the others. Returns why they cannot begin, or None.

    The first to find a problem reports it to all. They wait until all have read it: the store ends with rank 0.
    """
    end = time.monotonic() + timeout
    here = {rank: settings}
    problem: UserError | None = None
    store.set(f"here/{rank}", json.dumps(settings))
    while problem is None:
        absent = [other for other in range(world_size) if other not in here]
        for other in absent:
            if store.check([f"here/{other}"]):
                here[other] = json.loads(store.get(f"here/{other}"))
        if store.check(["over"]):
            problem = decode_error(json.loads(store.get("over")))
        elif difference := next(filter(None, (_disagrees(other, here) for other in here)), None):
            problem = UserError(difference)
            store.set("over", json.dumps(encode_error(problem)))
        elif not absent:
            return None
        elif time.monotonic() > end:
            problem = PeerTimeout(
                f"cluster.timeout={timeout:g}: {_ranks(absent)} of {world_size} did not arrive in time"
            )
            store.set("over", json.dumps(encode_error(problem)))
        else:
            time.sleep(POLL_SECONDS)
    time.sleep(10 * POLL_SECONDS)
    return problem


def _disagrees(rank: int, here: Mapping[int, Mapping[str, Any]]) -> str | None:
    return describe_disagreement(f"rank {rank}", here[rank], "rank 0", here[0]) if 0 in here else None


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
