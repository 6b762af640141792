"""A barrier of the ranks of one host, which meet through pipes.

A barrier of Gloo sends messages through sockets and takes 10 to 100 times as long.
"""

import os
import select
from collections.abc import Mapping
from contextlib import suppress

import torch
import torch.distributed as dist


class PipeBarrier:
    """A barrier: each rank writes a byte into a pipe to every other rank, and reads a byte from each of them.

    Args:
        incoming: the read end of the pipe from each other rank.
        outgoing: the write end of the pipe to each other rank.
        timeout: seconds that a rank waits for the others.
    """

    def __init__(self, incoming: Mapping[int, int], outgoing: Mapping[int, int], timeout: float) -> None:
        self._incoming, self._outgoing, self._timeout = incoming, outgoing, timeout

    def wait(self) -> None:
        """Wait until all ranks have called this method. Then each sees what the others have written to shared memory.

        Raises:
            RuntimeError: another rank has ended, or does not come within the timeout.
        """
        for rank, pipe in self._outgoing.items():
            try:
                os.write(pipe, b".")
            except BrokenPipeError as error:
                raise RuntimeError(f"rank {rank} has ended") from error
        for rank, pipe in self._incoming.items():
            readable, _, _ = select.select([pipe], [], [], self._timeout)
            if not readable:
                raise RuntimeError(f"rank {rank} did not answer for {self._timeout:g} s")
            if not os.read(pipe, 1):
                raise RuntimeError(f"rank {rank} has ended")


def open_pipe_barrier(timeout: float) -> PipeBarrier | None:
    """Open the pipes between all ranks. Every rank of the process group calls it, and all must be on one host.

    Return None if a rank may not open the pipes of another one.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ends = {other: os.pipe() for other in range(world_size) if other != rank}  # read end and write end
    write_ends: list[dict[int, str]] = [{}] * world_size
    paths = {other: f"/proc/{os.getpid()}/fd/{write_end}" for other, (_, write_end) in ends.items()}
    dist.all_gather_object(write_ends, paths)
    outgoing = {}
    with suppress(OSError):
        outgoing = {other: os.open(write_ends[other][rank], os.O_WRONLY) for other in ends}
    all_have_opened = torch.tensor(int(len(outgoing) == len(ends)))
    dist.all_reduce(all_have_opened, dist.ReduceOp.MIN)
    for _, write_end in ends.values():
        os.close(write_end)  # the pipe ends with the process that writes into it
    incoming = {other: read_end for other, (read_end, _) in ends.items()}
    if all_have_opened:
        return PipeBarrier(incoming, outgoing, timeout)
    for pipe in (*incoming.values(), *outgoing.values()):
        os.close(pipe)
    return None
