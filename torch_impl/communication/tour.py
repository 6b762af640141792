"""What every rank of `python -m torch_impl.collectives` does. Rank 0 prints."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Column, Table

from common.cluster.processes import die_with_parent
from common.config.command_line import report_user_errors
from common.hardware import count_cores
from torch_impl.communication import allreduce
from torch_impl.communication.allreduce import ALGORITHMS, Traffic, bus_bandwidth, fit_alpha_beta, predict_seconds
from torch_impl.communication.rendezvous import init_process_group, rendezvous

TIMEOUT_SECONDS = 60.0
WEIGHED_ELEMENTS = 2**18  # 1 MiB
ROUNDS = 3, 30  # calls in a row, at least and at most

Operation = Callable[[torch.Tensor], torch.Tensor | None]  # this rank's tensor before and after; None: nothing to see


# The operations, on tensors whose length the world size divides


def send_recv(tensor: torch.Tensor) -> torch.Tensor:
    """Rank 0 sends its tensor, rank 1 receives it, and each waits until that is done."""
    if dist.get_rank() == 0:
        dist.send(tensor, dst=1)
    elif dist.get_rank() == 1:
        dist.recv(tensor, src=0)
    return tensor


def isend_irecv(tensor: torch.Tensor) -> torch.Tensor:
    """Everyone sends to the next rank while it receives from the one before; with send and recv all could wait."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    works = [dist.irecv(received, src=(rank - 1) % size), dist.isend(tensor, dst=(rank + 1) % size)]
    for work in works:
        assert work is not None
        work.wait()
    return received


def broadcast(tensor: torch.Tensor) -> torch.Tensor:
    """Everyone gets rank 0's tensor. Gloo hands it on along a tree: see who sends."""
    dist.broadcast(tensor, src=0)
    return tensor


def scatter(tensor: torch.Tensor) -> torch.Tensor:
    """Rank r gets part r of rank 0's tensor."""
    parts = list(tensor.chunk(dist.get_world_size()))
    received = torch.empty_like(parts[0])
    dist.scatter(received, parts if dist.get_rank() == 0 else None, src=0)
    return received


def gather(tensor: torch.Tensor) -> torch.Tensor | None:
    """Rank 0 gets everyone's tensor."""
    if dist.get_rank() != 0:
        dist.gather(tensor, dst=0)
        return None
    received = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.gather(tensor, received, dst=0)
    return torch.cat(received)


def reduce(tensor: torch.Tensor) -> torch.Tensor | None:
    """Rank 0 gets the sum of all tensors. The others' are scratch space: what is left in them means nothing."""
    dist.reduce(tensor, dst=0)
    return tensor if dist.get_rank() == 0 else None


def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """Everyone gets the sum of all tensors."""
    dist.all_reduce(tensor)
    return tensor


def all_gather(tensor: torch.Tensor) -> torch.Tensor:
    """Everyone gets everyone's tensor."""
    received = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(received, tensor)
    return torch.cat(received)


def reduce_scatter(tensor: torch.Tensor) -> torch.Tensor:
    """Rank r gets part r of the sum of all tensors. Gloo all-reduces them whole: twice the bytes that it takes."""
    parts = list(tensor.chunk(dist.get_world_size()))
    received = torch.empty_like(parts[0])
    dist.reduce_scatter(received, parts)
    return received


def all_to_all(tensor: torch.Tensor) -> torch.Tensor:
    """Rank r gets part r of everyone's tensor: rows become columns."""
    parts = list(tensor.chunk(dist.get_world_size()))
    received = [torch.empty_like(part) for part in parts]
    dist.all_to_all(received, parts)
    return torch.cat(received)


OPERATIONS: dict[str, Operation] = {
    "send / recv": send_recv,
    "isend / irecv": isend_irecv,
    "broadcast": broadcast,
    "scatter": scatter,
    "gather": gather,
    "reduce": reduce,
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
}


def show(name: str, operation: Operation, console: Console) -> None:
    """Print what every rank has before and after an operation, and what it sends when the tensors have 1 MiB."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(size) + 10.0 * rank
    before = _numbers(mine)
    after = _numbers(operation(mine))
    large = torch.zeros(WEIGHED_ELEMENTS // size * size)
    dist.barrier()
    start = _written_bytes()
    operation(large)
    sent = _written_bytes() - start
    rows: list[tuple[str, ...]] = [()] * size
    dist.all_gather_object(rows, (str(rank), before, after, f"{sent / 2**20:.2f} MiB" if start else "unknown"))
    table = Table("rank", "before", "after", "sends")
    for row in rows:
        table.add_row(*row)
    console.print(f"\n[bold]{name}[/bold]  {operation.__doc__}", table, sep="\n", highlight=False)


def _numbers(tensor: torch.Tensor | None) -> str:
    return "" if tensor is None else " ".join(f"{value:g}" for value in tensor.tolist())


def _written_bytes() -> int:
    """What this process has written so far, to sockets too, as Linux counts it; 0 on other systems."""
    counters = Path("/proc/self/io")
    return int(counters.read_text().split("wchar:")[1].split()[0]) if counters.exists() else 0


# The algorithms


def time_call(call: Callable[[], None], size: int, repeats: int) -> float:
    """Seconds that a call, which moves `size` bytes, takes the slowest rank: the mean of a row, the best of all."""
    rounds = min(max(2**20 // size, ROUNDS[0]), ROUNDS[1])
    means = torch.empty(repeats, dtype=torch.float64)
    call()
    for repeat in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(rounds):
            call()
        means[repeat] = (time.perf_counter() - start) / rounds
    dist.all_reduce(means, dist.ReduceOp.MAX)
    return float(means.min())


def time_message(size: int, repeats: int) -> float:
    """Seconds for `size` bytes from one rank to another: half a round trip between ranks 0 and 1."""
    message, traffic = torch.zeros(size // 4), Traffic()

    def ping_pong() -> None:
        if dist.get_rank() == 0:
            traffic.exchange([(message, 1)], [])
            traffic.exchange([], [(message, 1)])
        elif dist.get_rank() == 1:
            traffic.exchange([], [(message, 0)])
            traffic.exchange([(message, 0)], [])

    return time_call(ping_pong, size, repeats) / 2


def time_all_reduce(algorithm: str, size: int, repeats: int) -> float:
    """Seconds for an all-reduce of `size` bytes."""
    buffer, traffic = torch.zeros(size // 4), Traffic()
    return time_call(lambda: allreduce.all_reduce(buffer, algorithm, traffic), size, repeats)


def compare(sizes: list[int], repeats: int, console: Console) -> None:
    """Print alpha and beta, and a table of the algorithms over the sizes (bytes)."""
    world_size = dist.get_world_size()
    messages = [4**power for power in range(3, 14) if 4**power <= max(2**16, *sizes)]
    alpha, beta = fit_alpha_beta(messages, [time_message(size, repeats) for size in messages])
    console.print(
        f"\n[bold]all-reduce, {world_size} ranks[/bold]  A message takes alpha = {alpha * 1e6:.1f} µs and beta = "
        f"{beta * 1e9:.3f} ns for each byte, by least squares over ping-pongs of {messages[0]} to {messages[-1]} "
        f"bytes. The prediction knows these two alone: not the time that sums take, nor that {world_size} ranks share "
        f"{count_cores()} cores.",
        highlight=False,
    )
    table = Table("bytes", "algorithm", *(_right(name) for name in ("measured", "predicted", "bus bandwidth")))
    for size in sizes:
        for algorithm in ALGORITHMS:
            seconds = time_all_reduce(algorithm, size, repeats)
            predicted = predict_seconds(algorithm, world_size, size, alpha, beta)
            bandwidth = bus_bandwidth(world_size, size, seconds)
            times = f"{seconds * 1e3:.3f} ms", f"{predicted * 1e3:.3f} ms", f"{bandwidth / 1e6:.1f} MB/s"
            table.add_row(str(size), algorithm, *times, end_section=algorithm == "native")
    console.print(table)


def _right(name: str) -> Column:
    return Column(name, justify="right")


def main(repeats: int, sizes: list[int]) -> None:
    group = rendezvous(TIMEOUT_SECONDS, {})
    init_process_group(group, TIMEOUT_SECONDS, "gloo")
    rank, size = group.rank, group.world_size
    console = Console(quiet=rank != 0)
    console.print(
        f"{size} ranks, processes that talk over Gloo. `sends` is measured: what a rank writes to its sockets when all "
        "tensors have 1 MiB.",
        highlight=False,
    )
    for name, operation in OPERATIONS.items():
        show(name, operation, console)
    compare(sizes, repeats, console)
    dist.destroy_process_group()


if __name__ == "__main__":
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would wait until Gloo has what it waits for
    with report_user_errors(()):
        main(int(sys.argv[1]), [int(size) for size in sys.argv[2:]])
