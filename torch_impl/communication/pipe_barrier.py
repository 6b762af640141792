"""A barrier of the ranks of one host, which meet through pipes.

A barrier of Gloo sends messages through sockets and takes 10 to 100 times as long.
"""

import os
import select
from collections.abc import Mapping
from contextlib import suppress

import torch
import torch.distributed as dist

MESSAGE_BYTES = 8  # size of the number that a rank sends
LONGEST_POLL = 2**31 - 1  # milliseconds that a poll can wait


class PipeBarrier:
    """A barrier: each rank writes a number into a pipe to every other rank, and reads a number from each of them.

    Args:
        incoming: the read end of the pipe from each other rank.
        outgoing: the write end of the pipe to each other rank.
        timeout: seconds that a rank waits for the others.
    """

    def __init__(self, incoming: Mapping[int, int], outgoing: Mapping[int, int], timeout: float) -> None:
        self._incoming, self._outgoing, self._timeout = incoming, outgoing, timeout
        self._polls = {rank: select.poll() for rank in incoming}  # `select.select` refuses descriptors above 1023
        for rank, pipe in incoming.items():
            self._polls[rank].register(pipe, select.POLLIN)

    def wait(self, size: int = 0) -> None:
        """Wait until all ranks have called this method. Then each sees what the others have written to shared memory.

        Args:
            size: the number of bytes that the ranks exchange, which all ranks must agree on.

        Raises:
            RuntimeError: another rank has ended, does not come within the timeout, or gives another size.
        """
        message = size.to_bytes(MESSAGE_BYTES, "little")
        for rank, pipe in self._outgoing.items():
            try:
                os.write(pipe, message)
            except BrokenPipeError as error:
                raise RuntimeError(f"rank {rank} has ended") from error
        for rank, pipe in self._incoming.items():
            if not self._polls[rank].poll(min(1000 * self._timeout, LONGEST_POLL)):
                raise RuntimeError(f"rank {rank} did not answer for {self._timeout:g} s")
            received = os.read(pipe, MESSAGE_BYTES)  # a write of few bytes is not divided
            if not received:
                raise RuntimeError(f"rank {rank} has ended")
            if received != message:
                other = int.from_bytes(received, "little")
                raise RuntimeError(
                    f"rank {rank} sums {other} bytes, this rank {size}: all ranks must compute the same layers"
                )


def open_pipe_barrier(timeout: float) -> PipeBarrier | None:
    """Open the pipes between all ranks. Every rank of the process group calls it, and all must be on one host.

    Return None if a rank may not open the pipes of another rank.
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
