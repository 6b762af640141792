"""All-reduce algorithms: each sums a buffer over all ranks, in place, with point-to-point messages only.

In the docstrings N is the world size and n the size of the buffer in bytes. All ranks get bit-identical sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.distributed as dist

Messages = Sequence[tuple[torch.Tensor, int]]  # tensors, each with the rank that it goes to or comes from


@dataclass
class Traffic:
    """The messages and bytes that this rank has sent."""

    messages: int = 0
    bytes: int = 0

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Receive and send at the same time, and wait until all messages have arrived.

        The tensors are contiguous. An empty tensor is not sent, because both ends know its length.
        """
        operations = [dist.P2POp(dist.irecv, tensor, rank) for tensor, rank in receives if tensor.numel()]
        for tensor, rank in sends:
            if tensor.numel():
                operations.append(dist.P2POp(dist.isend, tensor, rank))
                self.messages += 1
                self.bytes += tensor.nbytes
        # One batch, because NCCL would otherwise finish each operation before it begins the next.
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()


def all_reduce(tensor: torch.Tensor, algorithm: str, traffic: Traffic) -> None:
    """Sum a tensor of any shape over all ranks, in place; `algorithm` is one of ALGORITHMS.

    bfloat16 and float16 values are sent and summed as float32, and the sum is rounded once. So the order of the
    summation hardly matters. If the float32 sums are exact, as for values within a factor of about 2^13, the order does
    not matter at all.
    """
    is_half = tensor.dtype in (torch.bfloat16, torch.float16)
    buffer = tensor.reshape(-1).to(torch.float32 if is_half else tensor.dtype)  # a view of the tensor if possible
    ALGORITHMS[algorithm](buffer, traffic)
    if buffer.data_ptr() != tensor.data_ptr():
        tensor.copy_(buffer.view_as(tensor))


def gather_broadcast(buffer: torch.Tensor, traffic: Traffic) -> None:
    """Gather all buffers on rank 0, sum them, and send the sum to every rank.

    Rank 0 sends N-1 messages and (N-1) n bytes. Every other rank sends 1 message and n bytes.
    """
    rank, others = dist.get_rank(), range(1, dist.get_world_size())
    if rank == 0:
        received = [torch.empty_like(buffer) for _ in others]
        traffic.exchange([], list(zip(received, others, strict=True)))
        for other_buffer in received:
            buffer += other_buffer
        traffic.exchange([(buffer, other) for other in others], [])
    else:
        traffic.exchange([(buffer, 0)], [])
        traffic.exchange([], [(buffer, 0)])


def all_to_all(buffer: torch.Tensor, traffic: Traffic) -> None:
    """Send the buffer of every rank to every other rank. Each rank sums all buffers in the order of the ranks.

    Every rank sends N-1 messages and (N-1) n bytes.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(size) if other != rank]
    buffers = [buffer if other == rank else torch.empty_like(buffer) for other in range(size)]
    traffic.exchange([(buffer, other) for other in others], [(buffers[other], other) for other in others])
    buffer.copy_(reduce(torch.add, buffers))


def ring(buffer: torch.Tensor, traffic: Traffic) -> None:
    """Send chunks of 1/N of the buffer around a ring twice.

    The first time sums them (scatter-reduce), the second time spreads the sums (all-gather).

    Every rank sends 2(N-1) messages and 2(N-1)/N n bytes. If N does not divide the length, the first chunks have one
    element more, and rank r sends 2n bytes minus the bytes of chunks r+1 and r+2 (mod N). An empty chunk is not sent.

    Source: Patarasu and Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, 2009.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    following, preceding = (rank + 1) % size, (rank - 1) % size
    chunks = buffer.tensor_split(size)
    received = torch.empty_like(chunks[0])  # the first chunk is the longest
    for step in range(size - 1):  # scatter-reduce
        outgoing, partial_sum = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        incoming = received[: len(partial_sum)]
        traffic.exchange([(outgoing, following)], [(incoming, preceding)])
        partial_sum += incoming
    for step in range(size - 1):  # all-gather
        complete, incomplete = chunks[(rank - step + 1) % size], chunks[(rank - step) % size]
        traffic.exchange([(complete, following)], [(incomplete, preceding)])


def recursive_doubling(buffer: torch.Tensor, traffic: Traffic) -> None:
    """Exchange partial sums between ranks at distance 1, 2, 4, ... until every rank has the whole sum.

    Let N = P + s, with P the largest power of two up to N. Of the first 2s ranks, each even rank gives its buffer to
    the next rank at the start and gets the sum back at the end. The other P ranks take part in the exchanges.

    Every message has n bytes. The even ranks below 2s send 1 message, the odd ones 1 + log2 P, all other ranks log2 P.

    Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, 2005.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    power = 1 << (size.bit_length() - 1)
    surplus = size - power
    if rank < 2 * surplus and rank % 2 == 0:
        traffic.exchange([(buffer, rank + 1)], [])
        traffic.exchange([], [(buffer, rank + 1)])
        return
    received = torch.empty_like(buffer)
    if rank < 2 * surplus:
        traffic.exchange([], [(received, rank - 1)])
        buffer += received
    index = rank // 2 if rank < 2 * surplus else rank - surplus  # index among the P ranks that take part
    for distance in (1 << doubling for doubling in range(power.bit_length() - 1)):
        partner_index = index ^ distance
        partner = 2 * partner_index + 1 if partner_index < surplus else partner_index + surplus
        traffic.exchange([(buffer, partner)], [(received, partner)])
        buffer += received  # both partners compute a + b, so they get the same bits
    if rank < 2 * surplus:
        traffic.exchange([(buffer, rank - 1)], [])


def native(buffer: torch.Tensor, traffic: Traffic) -> None:
    """Sum with torch's own all-reduce. Its traffic is not counted, because torch does not report it."""
    dist.all_reduce(buffer)


ALGORITHMS: dict[str, Callable[[torch.Tensor, Traffic], None]] = {
    "gather_broadcast": gather_broadcast,
    "all_to_all": all_to_all,
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "native": native,
}  # functions that sum a contiguous buffer [length] over all ranks in place
