"""The devices of replicas: one GPU for each if there are GPUs, otherwise the CPU."""

import torch

from common.errors import UserError
from common.hardware import count_visible_gpus, get_peak_resident_bytes


def select_replica_devices(count: int) -> list[torch.device]:
    """Return a device for each replica on this host. Raise UserError if PyTorch cannot use the visible GPUs."""
    if count_visible_gpus() and not torch.cuda.is_available():
        raise UserError(
            "this PyTorch cannot use the visible GPU(s); set CUDA_VISIBLE_DEVICES= (empty) or install its GPU build"
        )
    gpus = torch.cuda.is_available()
    torch.backends.cudnn.allow_tf32 = False  # it would round float32 to 10 bits of mantissa
    return [torch.device("cuda", index) if gpus else torch.device("cpu") for index in range(count)]


def measure_peak_memory(devices: list[torch.device]) -> list[int]:
    """Return the peak memory of each replica in bytes: allocated on its GPU, or resident in this process."""
    return [
        torch.cuda.max_memory_allocated(device) if device.type == "cuda" else get_peak_resident_bytes()
        for device in devices
    ]
