"""How long two processes of this machine take to sum gradients over a ring: alpha and beta of `common.bench.predict`.

As strategy=allreduce does it: beta includes what a byte takes to be copied to its bucket, sent, added and copied back.
Started by torchrun, two processes.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import Parameter

from common.bench.contestant_task import Rows
from torch_impl.strategies.allreduce import Reducer

PARAMETER = 2**18  # bytes
SMALL, LARGE = 2**10, 2**24  # bytes of all gradients
REDUCTIONS = {SMALL: 50, LARGE: 3}  # of a row

parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path)
args = parser.parse_args(namespace=argparse.Namespace(global_batch_size=0))

dist.init_process_group("gloo")
torch.set_num_threads(1)


def bucket_of(size: int) -> list[Parameter]:
    """Parameters of so many bytes together, with gradients."""
    parts = [min(PARAMETER, size - start) for start in range(0, size, PARAMETER)]
    bucket = [Parameter(torch.zeros(part // 4)) for part in parts]
    for parameter in bucket:
        parameter.grad = torch.zeros_like(parameter)
    return bucket


reducers = {size: Reducer([bucket_of(size)], "ring", overlap=False) for size in (SMALL, LARGE)}


def seconds_of(size: int) -> float:
    """Mean seconds to reduce so many bytes."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(REDUCTIONS[size]):
        reducers[size].finish()
    return (time.perf_counter() - began) / REDUCTIONS[size]


rows = Rows(args) if dist.get_rank() == 0 else None
while True:
    small, large = seconds_of(SMALL), seconds_of(LARGE)  # 2 alpha + size beta: see `predict.ring`
    beta = (large - small) / (LARGE - SMALL)
    if rows is not None:
        rows.write(0, alpha=(small - SMALL * beta) / 2, beta=beta)
