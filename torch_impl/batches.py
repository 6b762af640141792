"""Shards of a global batch as tensors."""

import numpy as np
import torch

from common.data.batches import Arrays


def to_tensors(shard: list[Arrays], device: torch.device) -> list[dict[str, torch.Tensor]]:
    """Copy the micro-batches of a shard to a device. Integers become int64, which PyTorch's embeddings and losses take.

    Args:
        shard: The arrays of each micro-batch by name, as `GlobalBatch.shard` returns them.
        device: The device of the replica.
    """
    return [{name: _to_tensor(array, device) for name, array in arrays.items()} for arrays in shard]


def _to_tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # only copies from pinned memory are asynchronous
    keeps_dtype = tensor.is_floating_point() or tensor.dtype == torch.bool
    return tensor.to(device, tensor.dtype if keeps_dtype else torch.int64, non_blocking=True)
