"""The program of every rank of `python -m torch_impl.collectives`: the collectives, then timed all-reduces.

Rank 0 prints.
"""

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
from torch_impl.communication.allreduce import ALGORITHMS, Traffic
from torch_impl.communication.cost_model import compute_bus_bandwidth, fit_alpha_beta, predict_seconds
from torch_impl.communication.rendezvous import init_process_group, rendezvous

TIMEOUT_SECONDS = 60.0
MEASURED_ELEMENTS = 2**18  # float32 values, 1 MiB, of the tensor with which the traffic of an operation is measured
ROUNDS = 3, 30  # least and largest number of calls that are timed together

# Maps the tensor of this rank before the operation to the one after it, or to None if this rank gets no result. The
# world size divides the length of the tensor. The docstring of an operation is printed.
Operation = Callable[[torch.Tensor], torch.Tensor | None]


def send_recv(tensor: torch.Tensor) -> torch.Tensor:
    """Send the tensor of rank 0 to rank 1. Both wait until the transfer is done."""
    if dist.get_rank() == 0:
        dist.send(tensor, dst=1)
    elif dist.get_rank() == 1:
        dist.recv(tensor, src=0)
    return tensor


def isend_irecv(tensor: torch.Tensor) -> torch.Tensor:
    """Send to the next rank while receiving from the previous one. With send and recv all ranks could wait forever."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    works = [dist.irecv(received, src=(rank - 1) % size), dist.isend(tensor, dst=(rank + 1) % size)]
    for work in works:
        assert work is not None
        work.wait()
    return received


def broadcast(tensor: torch.Tensor) -> torch.Tensor:
    """Send the tensor of rank 0 to every rank. Gloo forwards it along a tree, so that several ranks send."""
    dist.broadcast(tensor, src=0)
    return tensor


def scatter(tensor: torch.Tensor) -> torch.Tensor:
    """Send part r of the tensor of rank 0 to rank r."""
    parts = list(tensor.chunk(dist.get_world_size()))
    received = torch.empty_like(parts[0])
    dist.scatter(received, parts if dist.get_rank() == 0 else None, src=0)
    return received


def gather(tensor: torch.Tensor) -> torch.Tensor | None:
    """Send the tensors of all ranks to rank 0."""
    if dist.get_rank() != 0:
        dist.gather(tensor, dst=0)
        return None
    received = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.gather(tensor, received, dst=0)
    return torch.cat(received)


def reduce(tensor: torch.Tensor) -> torch.Tensor | None:
    """Sum all tensors on rank 0. The tensors of the other ranks are scratch space and hold no result."""
    dist.reduce(tensor, dst=0)
    return tensor if dist.get_rank() == 0 else None


def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """Sum all tensors on every rank."""
    dist.all_reduce(tensor)
    return tensor


def all_gather(tensor: torch.Tensor) -> torch.Tensor:
    """Send the tensors of all ranks to every rank."""
    received = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(received, tensor)
    return torch.cat(received)


def reduce_scatter(tensor: torch.Tensor) -> torch.Tensor:
    """Sum part r of all tensors on rank r. Gloo all-reduces whole tensors, which takes twice the bytes."""
    parts = list(tensor.chunk(dist.get_world_size()))
    received = torch.empty_like(parts[0])
    dist.reduce_scatter(received, parts)
    return received


def all_to_all(tensor: torch.Tensor) -> torch.Tensor:
    """Send part r of every tensor to rank r, so that rows become columns."""
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


def show_operation(name: str, operation: Operation, console: Console) -> None:
    """Print the tensor of every rank before and after an operation, and the bytes that it sends if it has 1 MiB."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(size) + 10.0 * rank
    before = _format_numbers(tensor)
    after = _format_numbers(operation(tensor))
    large = torch.zeros(MEASURED_ELEMENTS // size * size)
    dist.barrier()
    bytes_before = _count_written_bytes()
    operation(large)
    sent = _count_written_bytes() - bytes_before
    rows: list[tuple[str, ...]] = [()] * size
    dist.all_gather_object(rows, (str(rank), before, after, f"{sent / 2**20:.2f} MiB" if bytes_before else "unknown"))
    table = Table("rank", "before", "after", "sends")
    for row in rows:
        table.add_row(*row)
    console.print(f"\n[bold]{name}[/bold]  {operation.__doc__}", table, sep="\n", highlight=False)


def _format_numbers(tensor: torch.Tensor | None) -> str:
    return "" if tensor is None else " ".join(f"{value:g}" for value in tensor.tolist())


def _count_written_bytes() -> int:
    """Return the bytes that this process has written to files and sockets, or 0 on systems other than Linux."""
    counters = Path("/proc/self/io")
    return int(counters.read_text().split("wchar:")[1].split()[0]) if counters.exists() else 0


def time_call(call: Callable[[], None], size: int, repeats: int) -> float:
    """Return the seconds that a call takes the slowest rank.

    Each repeat times several calls in a row and takes their mean. The result is the smallest mean of all repeats.

    Args:
        call: the collective call to time.
        size: bytes that the call moves; a call that moves fewer bytes is made more often in a row.
        repeats: number of repeats.
    """
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
    """Return the seconds of a message of `size` bytes: half a round trip between ranks 0 and 1."""
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
    """Return the seconds of an all-reduce of `size` bytes."""
    buffer, traffic = torch.zeros(size // 4), Traffic()
    return time_call(lambda: allreduce.all_reduce(buffer, algorithm, traffic), size, repeats)


def compare_algorithms(sizes: list[int], repeats: int, console: Console) -> None:
    """Print alpha and beta, and a table of the measured and predicted time of each algorithm.

    Args:
        sizes: sizes of the buffers in bytes.
        repeats: number of repeats of each measurement.
        console: prints on rank 0 only.
    """
    world_size = dist.get_world_size()
    messages = [4**power for power in range(3, 14) if 4**power <= max(2**16, *sizes)]
    alpha, beta = fit_alpha_beta(messages, [time_message(size, repeats) for size in messages])
    console.print(
        f"\n[bold]all-reduce, {world_size} ranks[/bold]  A message takes alpha = {alpha * 1e6:.1f} µs and beta = "
        f"{beta * 1e9:.3f} ns for each byte, fitted to ping-pongs of {messages[0]} to {messages[-1]} bytes. The "
        f"prediction uses only these two: it ignores the time of the summation, and that {world_size} ranks share "
        f"{count_cores()} cores.",
        highlight=False,
    )
    table = Table(
        "bytes", "algorithm", *(Column(name, justify="right") for name in ("measured", "predicted", "bus bandwidth"))
    )
    for size in sizes:
        for algorithm in ALGORITHMS:
            seconds = time_all_reduce(algorithm, size, repeats)
            predicted = predict_seconds(algorithm, world_size, size, alpha, beta)
            bandwidth = compute_bus_bandwidth(world_size, size, seconds)
            cells = f"{seconds * 1e3:.3f} ms", f"{predicted * 1e3:.3f} ms", f"{bandwidth / 1e6:.1f} MB/s"
            table.add_row(str(size), algorithm, *cells, end_section=algorithm == "native")
    console.print(table)


def main(repeats: int, sizes: list[int]) -> None:
    """Run the tour as the rank that the environment names."""
    group = rendezvous(TIMEOUT_SECONDS, {})
    init_process_group(group, TIMEOUT_SECONDS, "gloo")
    rank, size = group.rank, group.world_size
    console = Console(quiet=rank != 0)
    console.print(
        f"{size} ranks, processes that communicate over Gloo. `sends` is measured: the bytes that a rank writes to its "
        "sockets if all tensors have 1 MiB.",
        highlight=False,
    )
    for name, operation in OPERATIONS.items():
        show_operation(name, operation, console)
    compare_algorithms(sizes, repeats, console)
    dist.destroy_process_group()


if __name__ == "__main__":
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would not run while Gloo waits
    with report_user_errors(()):
        main(int(sys.argv[1]), [int(size) for size in sys.argv[2:]])
