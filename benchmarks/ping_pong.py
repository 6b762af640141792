"""Both ends of a ping-pong over Gloo: a message travels from one rank to the other rank and back.

Rank 0 prints JSON: the seconds for one way, by the size of the message in bytes.
"""

import json
import os
import statistics
import time

import torch
import torch.distributed as dist

from common.cluster.network import find_interface_towards
from torch_impl.communication.rendezvous import init_process_group, rendezvous

# Bytes. The limit of the link lets a first part of a message pass at once (BURST_MS in two_hosts.py). A message that is
# only a little longer would seem to be fast, so no size is just above that part.
SIZES = (2**10, 2**20, 2**22)
ROUNDS = 5


def main() -> None:
    """Send messages of every size to the other rank and back, and print the median times."""
    os.environ["GLOO_SOCKET_IFNAME"] = find_interface_towards(os.environ["MASTER_ADDR"]) or ""
    group = rendezvous(60, {})
    init_process_group(group, 60, "gloo")
    rank = group.rank
    medians = {}
    for size in SIZES:
        message = torch.zeros(size // 4)
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            if rank == 0:
                dist.send(message, 1)
                dist.recv(message, 1)
            else:
                dist.recv(message, 0)
                dist.send(message, 0)
            times.append((time.perf_counter() - start) / 2)
        medians[size] = statistics.median(times)
    if rank == 0:
        print(json.dumps(medians))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
