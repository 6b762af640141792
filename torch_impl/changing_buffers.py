"""Buffers that forward passes in training mode change, other than BatchNorm's moving statistics.

Preparation has found out whether the new value of a buffer depends on the examples. If it does not, every replica
computes the same value. If it does, the replicas continue after every step with the mean of their buffers, which
model.buffers=average permits.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import Module

from common.errors import UserError
from common.map.changing_buffers import describe_unequal_replicas

# Largest difference of buffers that count as equal, relative to the largest element. The mean of float32 values has
# smaller rounding errors.
TOLERANCE = 1e-6

Buffers = dict[str, torch.Tensor]  # buffers by name


def mark_changing_buffers(model: Module, depend_on_examples: Mapping[str, bool]) -> None:
    """Store in the model which of its buffers change, by name, and whether their new values depend on the examples."""
    model.changing_buffers = dict(depend_on_examples)  # type: ignore[assignment]


def find_changing_buffers(model: Module, dependent: bool | None = None) -> Buffers:
    """Return the buffers of a model that forward passes change, by name.

    Call this function before every use, because a forward pass may replace a buffer by another tensor.

    Args:
        model: The model. If `mark_changing_buffers` was not called for it, it has no such buffers.
        dependent: True for the buffers whose new values depend on the examples, False for the others, None for all.
    """
    marks: Mapping[str, bool] = getattr(model, "changing_buffers", {})
    names = {name for name, mark in marks.items() if dependent in (None, mark)}
    return {name: buffer for name, buffer in model.named_buffers() if name in names}


def average_buffers(model: Module, all_reduce: Callable[[torch.Tensor], object], world_size: int) -> None:
    """Set the buffers of every rank that depend on the examples to their mean over all ranks.

    Args:
        model: The model of this rank.
        all_reduce: A function that sums a tensor over the ranks, in place.
        world_size: The number of ranks.
    """
    for buffer in find_changing_buffers(model, dependent=True).values():
        all_reduce(buffer)
        buffer /= world_size


def check_equal_buffers(model: Module, all_reduce: Callable[[torch.Tensor], object], world_size: int) -> None:
    """Raise UserError if a buffer that should be the same on all ranks is not.

    Args:
        model: The model of this rank.
        all_reduce: A function that sums a tensor over the ranks, in place.
        world_size: The number of ranks.
    """
    for name, buffer in find_changing_buffers(model, dependent=False).items():
        mean = buffer.double()
        mean = mean.clone() if mean is buffer else mean
        all_reduce(mean)
        _check_equal(name, buffer, mean / world_size)


def _check_equal(name: str, buffer: torch.Tensor, mean: torch.Tensor) -> None:
    values = buffer.double()
    if values.numel() and (values - mean).abs().max() > TOLERANCE * values.abs().max():
        raise UserError(describe_unequal_replicas(name))


def gather_replica_buffers(model: Module, replicas: Sequence[Module]) -> None:
    """Set the buffers of a model from the replicas in this process: to their mean if they depend on the examples.

    Raises:
        UserError: A buffer that should be the same in all replicas is not.
    """
    copies = [find_changing_buffers(replica) for replica in replicas]
    for name, buffer in find_changing_buffers(model, dependent=False).items():
        mean = torch.stack([replica[name].double() for replica in copies]).mean(0)
        _check_equal(name, copies[0][name], mean)
        buffer.copy_(copies[0][name])
    for name, buffer in find_changing_buffers(model, dependent=True).items():
        buffer.copy_(torch.stack([replica[name] for replica in copies]).mean(0))


def copy_buffers(source: Module, target: Module) -> None:
    """Copy the buffers that forward passes change from one copy of a model to another."""
    buffers = find_changing_buffers(source)
    for name, buffer in find_changing_buffers(target).items():
        buffer.copy_(buffers[name])
