"""All-reduce by hand: sums over all ranks on point-to-point messages alone, and what they should cost.

In the docstrings N is the world size and n the bytes of the buffer. All ranks end with bit-identical sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
import torch.distributed as dist

Messages = Sequence[tuple[torch.Tensor, int]]  # what, and the rank that it goes to or comes from


@dataclass
class Traffic:
    """What this rank has sent."""

    messages: int = 0
    bytes: int = 0

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Post the receives, then the sends, and wait for them all.

        Tensors are contiguous. Those without elements stay where they are: both ends know the lengths.
        """
        operations = [dist.P2POp(dist.irecv, tensor, rank) for tensor, rank in receives if tensor.numel()]
        for tensor, rank in sends:
            if tensor.numel():
                operations.append(dist.P2POp(dist.isend, tensor, rank))
                self.messages += 1
                self.bytes += tensor.nbytes
        # Posted in one batch, since NCCL would otherwise wait for each of them before the next.
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()


def all_reduce(tensor: torch.Tensor, algorithm: str, traffic: Traffic) -> None:
    """Sum a tensor of any shape over all ranks, in place; `algorithm` is one of ALGORITHMS.

    bfloat16 and float16 travel and are summed as float32 and are rounded once, so that the order hardly matters: it
    does not at all where the float32 sums are exact, as those of values within a factor of 2^13 or so are.
    """
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    buffer = tensor.reshape(-1).to(torch.float32 if half else tensor.dtype)  # the tensor's own memory where it can be
    ALGORITHMS[algorithm](buffer, traffic)
    if buffer.data_ptr() != tensor.data_ptr():
        tensor.copy_(buffer.view_as(tensor))


def gather_broadcast(buffer: torch.Tensor, traffic: Traffic) -> None:
    """Rank 0 gathers all buffers, sums them and sends everyone the sum.

    Sent: N-1 messages and (N-1) n bytes by rank 0, 1 message and n bytes by every other.
    """
    rank, others = dist.get_rank(), range(1, dist.get_world_size())
    if rank == 0:
        received = [torch.empty_like(buffer) for _ in others]
        traffic.exchange([], list(zip(received, others, strict=True)))
        for part in received:
            buffer += part
        traffic.exchange([(buffer, other) for other in others], [])
    else:
        traffic.exchange([(buffer, 0)], [])
        traffic.exchange([], [(buffer, 0)])


def all_to_all(buffer: torch.Tensor, traffic: Traffic) -> None:
    """Everyone sends everyone its buffer and sums what it has, in the order of the ranks.

    Sent: N-1 messages and (N-1) n bytes by every rank.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(size) if other != rank]
    parts = [buffer if other == rank else torch.empty_like(buffer) for other in range(size)]
    traffic.exchange([(buffer, other) for other in others], [(parts[other], other) for other in others])
    buffer.copy_(reduce(torch.add, parts))


def ring(buffer: torch.Tensor, traffic: Traffic) -> None:
    """Chunks of 1/N travel around a ring twice: summed on the way (scatter-reduce), then as sums (all-gather).

    Sent: 2(N-1) messages and 2(N-1)/N n bytes by every rank. Where N does not divide the length, the first chunks have
    one element more, and rank r sends 2n bytes less those of chunks r+1 and r+2 (mod N). An empty chunk is no message.
    Source: Patarasu and Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, 2009.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    following, preceding = (rank + 1) % size, (rank - 1) % size
    chunks = buffer.tensor_split(size)
    received = torch.empty_like(chunks[0])  # the longest
    for step in range(size - 1):
        mine, summed = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        part = received[: len(summed)]
        traffic.exchange([(mine, following)], [(part, preceding)])
        summed += part
    for step in range(size - 1):
        known, missing = chunks[(rank - step + 1) % size], chunks[(rank - step) % size]
        traffic.exchange([(known, following)], [(missing, preceding)])


def recursive_doubling(buffer: torch.Tensor, traffic: Traffic) -> None:
    """Ranks at distance 1, 2, 4, ... exchange all that they have summed.

    With N = P + s, P the largest power of two in it: of the first 2s ranks the even ones give their buffer to the next
    rank before, and get the sum from it after.
    Sent: log2 P messages by every rank, but 1 by those even ones and 1 + log2 P by their partners; n bytes in each.
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
    place = rank // 2 if rank < 2 * surplus else rank - surplus  # among the P that take part
    for distance in (1 << doubling for doubling in range(power.bit_length() - 1)):
        other = place ^ distance
        partner = 2 * other + 1 if other < surplus else other + surplus
        traffic.exchange([(buffer, partner)], [(received, partner)])
        buffer += received  # both compute a + b: the same bits
    if rank < 2 * surplus:
        traffic.exchange([(buffer, rank - 1)], [])


def native(buffer: torch.Tensor, traffic: Traffic) -> None:
    """torch's own all-reduce. What it sends is not counted: torch does not report it."""
    dist.all_reduce(buffer)


ALGORITHMS: dict[str, Callable[[torch.Tensor, Traffic], None]] = {
    "gather_broadcast": gather_broadcast,
    "all_to_all": all_to_all,
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "native": native,
}  # each sums a contiguous buffer [length] in place


def predict_seconds(algorithm: str, world_size: int, size: float, alpha: float, beta: float) -> float:
    """Seconds for an all-reduce of `size` bytes in the alpha-beta model (Hockney, 1994); sums take no time in it.

    A message takes alpha seconds and beta more for each byte; a rank sends one at a time. With P and s as in
    `recursive_doubling`:
    gather_broadcast    2(N-1) (alpha + n beta), all of them rank 0's
    all_to_all          (N-1) (alpha + n beta)
    ring                2(N-1) (alpha + n/N beta)
    recursive_doubling  (log2 P + 2 [s > 0]) (alpha + n beta)
    native              as ring, which Gloo does
    """
    doublings = world_size.bit_length() - 1
    surplus = world_size > 1 << doublings
    whole, chunk = alpha + size * beta, alpha + size / world_size * beta
    return {
        "gather_broadcast": 2 * (world_size - 1) * whole,
        "all_to_all": (world_size - 1) * whole,
        "ring": 2 * (world_size - 1) * chunk,
        "recursive_doubling": (doublings + 2 * surplus) * whole,
        "native": 2 * (world_size - 1) * chunk,
    }[algorithm]


def fit_alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """alpha (seconds per message) and beta (seconds per byte), from messages of at least two sizes (bytes).

    Least squares of the relative errors, so that small messages count as much as large ones; neither is below 0.
    """
    times = np.asarray(seconds)
    terms = np.stack([np.ones_like(times), np.asarray(sizes)], axis=1) / times[:, None]
    scale = np.linalg.norm(terms, axis=0)  # of bytes and of messages, many powers of ten apart
    (alpha, beta), *_ = np.linalg.lstsq(terms / scale, np.ones_like(times), rcond=None)
    return max(0.0, float(alpha / scale[0])), max(0.0, float(beta / scale[1]))


def bus_bandwidth(world_size: int, size: float, seconds: float) -> float:
    """Bytes per second that a link must carry: 2(N-1)/N n / seconds, whatever the algorithm. Source: nccl-tests."""
    return 2 * (world_size - 1) / world_size * size / seconds
