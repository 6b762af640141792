"""Scripts for torchrun, run by two processes that start once for all scripts."""

import contextlib
import io
import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from common.cluster.network import find_loopback_interface

TIMEOUT = 240  # seconds


def run_on_two_ranks(commands: Sequence[tuple[Path, Sequence[str]]], store: Path) -> None:
    """Run scripts one after another on two ranks. Raise TimeoutError if they do not end.

    Args:
        commands: The path and the arguments of each script.
        store: A file that does not exist, by which the ranks meet.
    """
    context: Any = torch.multiprocessing.start_processes(
        _run_rank, (commands, store), nprocs=2, join=False, start_method="spawn"
    )
    deadline = time.monotonic() + TIMEOUT
    while not context.join(timeout=10):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"the ranks did not end within {TIMEOUT} s")


def _run_rank(rank: int, commands: Sequence[tuple[Path, Sequence[str]]], store: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = find_loopback_interface()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    destroy = dist.destroy_process_group
    for name in ("init_process_group", "destroy_process_group"):  # the scripts share one group
        setattr(dist, name, lambda *_: None)
    for path, arguments in commands:
        sys.argv = [str(path), *arguments]
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(path), run_name="__main__")
    destroy()
