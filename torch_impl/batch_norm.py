"""BatchNorm in several replicas: each has the statistics of its own shard, and moving statistics are their means."""

from collections.abc import Callable

import torch
from torch.nn import Module

STATISTICS = ("running_mean", "running_var")


def statistics(model: Module) -> dict[str, torch.Tensor]:
    """The moving statistics, by name."""
    return {name: each for name, each in model.named_buffers() if name.rpartition(".")[2] in STATISTICS}


def average_statistics(model: Module, all_reduce: Callable[[torch.Tensor], object], world_size: int) -> None:
    """Set the moving statistics of every replica to the mean over all. all_reduce: sums over the ranks, in place.

    Moving statistics are linear in the statistics of the batches, so their mean after any number of steps is what the
    mean in each step would have led to.
    """
    for each in statistics(model).values():
        all_reduce(each)
        each /= world_size
