"""Rendezvous: wait for the other processes of a run, and check that all have the same settings.

The ranks share a store, a dictionary of texts. Each rank announces itself under the key `here/<rank>`. If the run
cannot begin, the reason is under `over`. The address of the chief's StopServer is under `stop`.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from common.cluster.agreement import collect_shared_settings, decode_error, describe_disagreement, encode_error
from common.cluster.network import find_address_towards
from common.cluster.processes import IS_REPLACEMENT, STOP_PORT
from common.cluster.stop_member import StopMember
from common.cluster.stop_server import StopServer
from common.errors import PeerTimeout, UserError, one_line
from common.run.context import RunContext
from torch_impl.communication.store import open_store

POLL_SECONDS = 0.05

Settings = Mapping[str, object]  # settings by key, with values that JSON can represent


@dataclass(frozen=True)
class Group:
    """The ranks of a run, as this rank sees them."""

    rank: int  # number of this process
    world_size: int  # number of ranks, which include the coordinator and the servers of parameter_server
    store: dist.Store | None  # shared by all ranks; None if this rank is alone
    channel: StopServer | StopMember | None  # lets the ranks agree on when to stop; None if this rank is alone


def join_group(context: RunContext) -> Group:
    """Wait for the other ranks of a run, if it has any. Raise PeerTimeout or UserError as `rendezvous` does."""
    if context.config.strategy.one_process:
        return Group(0, 1, None, None)
    return rendezvous(context.config.cluster.timeout, collect_shared_settings(context))


def rendezvous(timeout: float, settings: Settings) -> Group:
    """Wait for the other ranks. The environment variables RANK and WORLD_SIZE number them.

    Args:
        timeout: seconds to wait.
        settings: the settings that must be the same on all ranks.

    Raises:
        PeerTimeout: some ranks did not arrive in time; the message names them.
        UserError: a rank differs from rank 0; the message names the settings.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = open_store(rank, world_size, timeout)
    if IS_REPLACEMENT not in os.environ:  # the other ranks do not wait for a rank that is started again
        try:
            problem = _wait_for_all(store, rank, world_size, timeout, settings)
        except RuntimeError as error:
            raise PeerTimeout(f"rank 0 ended before all {world_size} ranks had arrived; see its error") from error
        if problem is not None:
            raise problem
    return Group(rank, world_size, store, _open_channel(store, rank))


def init_process_group(group: Group, timeout: float, backend: str) -> None:
    """Create torch's default process group from the ranks of a group.

    Args:
        group: the group, which has a store.
        timeout: seconds after which a collective fails.
        backend: "gloo" or "nccl".

    Raises:
        PeerTimeout: a rank has ended since the rendezvous, or cannot be reached.
    """
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
        raise PeerTimeout(message) from error


def _open_channel(store: dist.Store, rank: int) -> StopServer | StopMember:
    if rank == 0:
        server = StopServer(find_address_towards(os.environ["MASTER_ADDR"]), int(os.environ.get(STOP_PORT, 0)))
        store.set("stop", json.dumps(server.address))
        return server
    host, port, token = json.loads(store.get("stop"))
    return StopMember((host, port, token), f"rank {rank}")


def _wait_for_all(
    store: dist.Store, rank: int, world_size: int, timeout: float, settings: Settings
) -> UserError | None:
    """Announce this rank and wait for the others. Return the reason why the run cannot begin, or None.

    The first rank that finds a problem reports it to all. Every rank then stays until all ranks have had time to read
    it, because the store ends with rank 0.
    """
    end = time.monotonic() + timeout
    arrived = {rank: settings}  # settings of the ranks that have arrived
    problem: UserError | None = None
    store.set(f"here/{rank}", json.dumps(settings))
    while problem is None:
        absent = [other for other in range(world_size) if other not in arrived]
        for other in absent:
            if store.check([f"here/{other}"]):
                arrived[other] = json.loads(store.get(f"here/{other}"))
        if store.check(["over"]):
            problem = decode_error(json.loads(store.get("over")))
        elif difference := next(filter(None, (_describe_difference(other, arrived) for other in arrived)), None):
            problem = UserError(difference)
            store.set("over", json.dumps(encode_error(problem)))
        elif not absent:
            return None
        elif time.monotonic() > end:
            problem = PeerTimeout(
                f"cluster.timeout={timeout:g}: {_name_ranks(absent)} of {world_size} did not arrive in time"
            )
            store.set("over", json.dumps(encode_error(problem)))
        else:
            time.sleep(POLL_SECONDS)
    time.sleep(10 * POLL_SECONDS)
    return problem


def _describe_difference(rank: int, arrived: Mapping[int, Settings]) -> str | None:
    return describe_disagreement(f"rank {rank}", arrived[rank], "rank 0", arrived[0]) if 0 in arrived else None


def _name_ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
