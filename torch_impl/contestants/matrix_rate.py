"""Measure how fast the device multiplies matrices of a model's shapes: [tokens, hidden] x [hidden, intermediate].

On the CPU, MKL or oneDNN multiplies, whichever is faster on this machine. torchrun starts as many processes as the
measured contestants have replicas. The `flops` of a row count the operations of all processes so far.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from common.bench.contestant_task import RowWriter
from torch_impl.models.linear import onednn_linear

ROW_SECONDS = 0.2  # approximate time between two rows

parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path)
for name in ("tokens", "hidden", "intermediate"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--precision", choices=("float32", "bfloat16", "float64"))
args = parser.parse_args(namespace=argparse.Namespace(global_batch_size=0))  # RowWriter needs a size; 0: no examples

dist.init_process_group("gloo")
cuda = torch.cuda.is_available()
device = torch.device("cuda", dist.get_rank()) if cuda else torch.device("cpu")
dtype = getattr(torch, args.precision)
a = torch.randn(args.tokens, args.hidden, dtype=dtype, device=device)
b = torch.randn(args.hidden, args.intermediate, dtype=dtype, device=device)
out = torch.empty(args.tokens, args.intermediate, dtype=dtype, device=device)


def multiply_by_default() -> None:
    """Multiply with PyTorch's default library."""
    torch.mm(a, b, out=out)


def multiply_by_onednn() -> None:
    """Multiply with oneDNN."""
    onednn_linear(a, b.t())


def repeat(product: Callable[[], None], times: int) -> None:
    """Multiply this many times; return when the device has finished."""
    for _ in range(times):
        product()
    if cuda:
        torch.cuda.synchronize()


def measure_seconds(product: Callable[[], None]) -> float:
    """Return the mean seconds of a product."""
    repeat(product, 10)
    started_at = time.perf_counter()
    repeat(product, 20)
    return (time.perf_counter() - started_at) / 20


onednn = not cuda and dtype == torch.float32 and torch.backends.mkldnn.is_available()
product = min((multiply_by_default, *([multiply_by_onednn] if onednn else [])), key=measure_seconds)
times = torch.tensor(max(1, round(ROW_SECONDS / measure_seconds(product))))
dist.broadcast(times, 0)
flops = 2 * args.tokens * args.hidden * args.intermediate * int(times) * dist.get_world_size()
writer = RowWriter(args) if dist.get_rank() == 0 else None
operations = 0
while True:
    repeat(product, int(times))
    dist.barrier()
    operations += flops
    if writer is not None:
        writer.write(0, flops=operations)
