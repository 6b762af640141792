"""Sums of losses over the ranks of a process group."""

from collections.abc import Sequence
from typing import SupportsFloat

import torch
import torch.distributed as dist


def sum_over_ranks(losses: Sequence[SupportsFloat]) -> list[torch.Tensor]:
    """Return the sum of each loss, a tensor, over all ranks.

    The ranks' terms are added in the order of the ranks. An all-reduce's order depends on how many losses it sums.
    """
    local = torch.stack([torch.as_tensor(loss) for loss in losses])
    gathered = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, local)
    total = gathered[0]
    for part in gathered[1:]:
        total = total + part
    return list(total)
