"""Shards of a global batch as tensors."""

import numpy as np
import torch


def to_tensors(arrays: dict[str, np.ndarray], device: torch.device) -> dict[str, torch.Tensor]:
    """The arrays of a shard on a device, integers as int64. See common.data.batches."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {
        name: tensor.to(device, tensor.dtype if tensor.is_floating_point() else torch.int64, non_blocking=True)
        for name, tensor in tensors.items()
    }
