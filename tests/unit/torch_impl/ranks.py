"""Ranks of a process group that call functions for tests, so that many tests share the start of the processes."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from common.cluster.network import find_loopback_interface


class Ranks:
    """Processes in a group over Gloo. They end with `close` or with this process."""

    def __init__(self, size: int, directory: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed", "transformers.models.bert.modeling_bert"])
        pipes = [context.Pipe() for _ in range(size)]
        self.pipes = [here for here, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, size, str(directory / "rendezvous"), remote), daemon=True)
            for rank, (_, remote) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        for _, remote in pipes:
            remote.close()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function in every rank. Return the results by rank, or raise the first error."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        results = [pipe.recv() for pipe in self.pipes]
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()


def _serve(rank: int, size: int, rendezvous: str, pipe: Connection) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": find_loopback_interface(), "CUDA_VISIBLE_DEVICES": "", "LOCAL_RANK": str(rank)}
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(rendezvous, size), rank=rank, world_size=size)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(function(*arguments))
        except Exception as error:
            pipe.send(error)
