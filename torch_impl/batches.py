"""Shards of a global batch as tensors."""

import numpy as np
import torch

from common.data.batches import Arrays


def to_tensors(shard: list[Arrays], device: torch.device) -> list[dict[str, torch.Tensor]]:
    """The micro-batches of a shard on a device, integers as int64. See common.data.batches."""
    return [{name: _to_tensor(array, device) for name, array in part.items()} for part in shard]


def _to_tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # else the copy would not be asynchronous
    kept = tensor.is_floating_point() or tensor.dtype == torch.bool
    return tensor.to(device, tensor.dtype if kept else torch.int64, non_blocking=True)
