"""Measure the time of two processes to sum gradients over a ring: alpha seconds per message, beta seconds per byte.

The processes use the code of strategy=allreduce: beta includes copying a byte to its bucket, sending it, adding it and
copying it back. torchrun starts two processes.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import Parameter

from common.bench.contestant_task import RowWriter
from torch_impl.strategies.allreduce import Reducer

PARAMETER_BYTES = 2**18
SMALL, LARGE = 2**10, 2**24  # bytes of all gradients together
REDUCTIONS = {SMALL: 50, LARGE: 3}  # number of reductions that are timed for each row

parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path)
args = parser.parse_args(namespace=argparse.Namespace(global_batch_size=0))  # RowWriter needs a size; 0: no examples

dist.init_process_group("gloo")
torch.set_num_threads(1)


def create_bucket(size: int) -> list[Parameter]:
    """Return parameters with gradients of this size, in bytes."""
    parts = [min(PARAMETER_BYTES, size - start) for start in range(0, size, PARAMETER_BYTES)]
    bucket = [Parameter(torch.zeros(part // 4)) for part in parts]
    for parameter in bucket:
        parameter.grad = torch.zeros_like(parameter)
    return bucket


reducers = {size: Reducer([create_bucket(size)], "ring", overlap=False) for size in (SMALL, LARGE)}


def measure_seconds(size: int) -> float:
    """Return the mean seconds to reduce gradients of this size, in bytes."""
    dist.barrier()
    started_at = time.perf_counter()
    for _ in range(REDUCTIONS[size]):
        reducers[size].finish()
    return (time.perf_counter() - started_at) / REDUCTIONS[size]


writer = RowWriter(args) if dist.get_rank() == 0 else None
while True:
    # A ring of two sends 2 messages of half of the size: 2 alpha + size * beta.
    small, large = measure_seconds(SMALL), measure_seconds(LARGE)
    beta = (large - small) / (LARGE - SMALL)
    if writer is not None:
        writer.write(0, alpha=(small - SMALL * beta) / 2, beta=beta)
