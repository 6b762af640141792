"""How long two processes of this machine take to exchange a message: the alpha and beta of `common.bench.predict`.

Started by torchrun, two processes.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.contestants.task import Rows

SMALL, LARGE = 2**10, 2**22  # bytes
EXCHANGES = {SMALL: 100, LARGE: 10}  # of a row

parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path)
args = parser.parse_args(namespace=argparse.Namespace(global_batch_size=0))

dist.init_process_group("gloo")
torch.set_num_threads(1)
other = 1 - dist.get_rank()


def exchange(size: int) -> float:
    """Mean seconds for both to send a message of so many bytes to the other."""
    outgoing, incoming = torch.zeros(size // 4), torch.zeros(size // 4)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(EXCHANGES[size]):
        operations = [dist.P2POp(dist.irecv, incoming, other), dist.P2POp(dist.isend, outgoing, other)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    return (time.perf_counter() - began) / EXCHANGES[size]


rows = Rows(args) if dist.get_rank() == 0 else None
while True:
    small, large = exchange(SMALL), exchange(LARGE)
    beta = (large - small) / (LARGE - SMALL)
    if rows is not None:
        rows.write(0, alpha=small - SMALL * beta, beta=beta)
