"""Meet the other processes of a run."""

import os
import time
from datetime import timedelta

import torch.distributed as dist

from common.errors import UserError

POLL_SECONDS = 0.05


def join_group(timeout: float, backend: str = "gloo") -> tuple[int, int]:
    """Become a rank of the run's process group, as RANK and WORLD_SIZE say. Returns both.

    Raises UserError naming the ranks that have not come after `timeout` seconds.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _meeting_place(rank, world_size, timeout)
    store.set(f"here/{rank}", "")
    end = time.monotonic() + timeout
    while missing := [other for other in range(world_size) if not store.check([f"here/{other}"])]:
        if time.monotonic() > end:
            raise UserError(f"cluster.timeout={timeout:g}: {_ranks(missing)} of {world_size} did not come in time")
        time.sleep(POLL_SECONDS)
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
    try:
        return dist.TCPStore(
            address, port, world_size, serves, timedelta(seconds=timeout), wait_for_workers=False, multi_tenant=True
        )
    except (dist.DistError, RuntimeError) as error:
        if serves:
            raise UserError(f"MASTER_PORT={port}: cannot listen there ({' '.join(str(error).split())})") from error
        raise UserError(f"cluster.timeout={timeout:g}: rank 0 did not come in time ({address}:{port})") from error


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
