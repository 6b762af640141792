"""How fast the device multiplies matrices of a model's shapes: [tokens, hidden] x [hidden, intermediate].

Started by torchrun, as many processes as the contestants have replicas. A row's `flops` are of all of them.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.contestants.task import Rows

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


def multiply(times: int) -> None:
    """Returns once the device has done it."""
    for _ in range(times):
        torch.mm(a, b, out=out)
    if cuda:
        torch.cuda.synchronize()


multiply(10)
began = time.perf_counter()
multiply(20)
times = torch.tensor(max(1, round(20 * ROW_SECONDS / (time.perf_counter() - began))))
dist.broadcast(times, 0)
flops = 2 * args.tokens * args.hidden * args.intermediate * int(times) * dist.get_world_size()
rows = Rows(args) if dist.get_rank() == 0 else None
done = 0
while True:
    multiply(int(times))
    dist.barrier()
    done += flops
    if rows is not None:
        rows.write(0, flops=done)
