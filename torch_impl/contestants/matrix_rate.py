"""How fast the device multiplies matrices of a model's shapes: [tokens, hidden] x [hidden, intermediate].

On the CPU by MKL or by oneDNN, whichever is faster here. Started by torchrun, as many processes as the contestants have
replicas. A row's `flops` are of all of them.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from common.bench.contestant_task import Rows
from torch_impl.models.linear import multiply as onednn_product

ROW_SECONDS = 0.2  # of computing, about

parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path)
for name in ("tokens", "hidden", "intermediate"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--precision", choices=("float32", "bfloat16", "float64"))
args = parser.parse_args(namespace=argparse.Namespace(global_batch_size=0))

dist.init_process_group("gloo")
cuda = torch.cuda.is_available()
device = torch.device("cuda", dist.get_rank()) if cuda else torch.device("cpu")
dtype = getattr(torch, args.precision)
a = torch.randn(args.tokens, args.hidden, dtype=dtype, device=device)
b = torch.randn(args.hidden, args.intermediate, dtype=dtype, device=device)
out = torch.empty(args.tokens, args.intermediate, dtype=dtype, device=device)


def by_default() -> None:
    torch.mm(a, b, out=out)


def by_onednn() -> None:
    onednn_product(a, b.t())


def multiply(product: Callable[[], None], times: int) -> None:
    """Returns once the device has done it."""
    for _ in range(times):
        product()
    if cuda:
        torch.cuda.synchronize()


def seconds_of(product: Callable[[], None]) -> float:
    """Seconds of a product."""
    multiply(product, 10)
    began = time.perf_counter()
    multiply(product, 20)
    return (time.perf_counter() - began) / 20


onednn = not cuda and dtype == torch.float32 and torch.backends.mkldnn.is_available()
product = min((by_default, *([by_onednn] if onednn else [])), key=seconds_of)
times = torch.tensor(max(1, round(ROW_SECONDS / seconds_of(product))))
dist.broadcast(times, 0)
flops = 2 * args.tokens * args.hidden * args.intermediate * int(times) * dist.get_world_size()
rows = Rows(args) if dist.get_rank() == 0 else None
done = 0
while True:
    multiply(product, int(times))
    dist.barrier()
    done += flops
    if rows is not None:
        rows.write(0, flops=done)
