"""Bytes of parameters, gradients and optimizer slots that each rank holds between its passes."""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from common.records.summary import HELD_BYTES
from torch_impl.optimizer import Optimizer


def gather_held_bytes(parameters: Iterable[torch.Tensor], optimizer: Optimizer) -> dict[str, list[int]]:
    """Return the fields of summary.json with the bytes that each rank holds. Every rank must call this function.

    Args:
        parameters: The parameters that this rank holds, or its parts of the parameters.
        optimizer: The optimizer of this rank.
    """
    held_bytes = (  # the order is that of HELD_BYTES
        sum(parameter.nbytes for parameter in parameters),
        optimizer.gradient_bytes,
        sum(slot.nbytes for _, _, slot in optimizer.slot_tensors()),
    )
    rows: list[tuple[int, int, int]] = [(0, 0, 0)] * dist.get_world_size()
    dist.all_gather_object(rows, held_bytes)
    columns = (list(column) for column in zip(*rows, strict=True))
    return dict(zip(HELD_BYTES, columns, strict=True))
