"""The devices of replicas: one GPU for each if there are GPUs, otherwise the CPU."""

import torch

from common.config.validate import NO_GPU
from common.errors import UserError
from common.hardware import count_visible_gpus, get_peak_resident_bytes
from torch_impl.record.environment import describe_environment as describe_model_environment


def select_replica_devices(count: int, device: str = "auto") -> list[torch.device]:
    """Return a device for each replica on this host. Raise UserError if PyTorch cannot use the GPUs that it should.

    Args:
        count: The number of replicas.
        device: The value of `train.device`.
    """
    gpus = device != "cpu" and torch.cuda.is_available()
    if not gpus and device != "cpu" and count_visible_gpus():
        raise UserError("this PyTorch cannot use the visible GPU(s); set train.device=cpu or install its GPU build")
    if not gpus and device == "cuda":
        raise UserError(NO_GPU)
    torch.backends.cudnn.allow_tf32 = False  # TF32 rounds float32 to 10 bits of mantissa
    return [torch.device("cuda", index) if gpus else torch.device("cpu") for index in range(count)]


def measure_peak_memory(devices: list[torch.device]) -> list[int]:
    """Return the peak memory of each replica in bytes: allocated on its GPU, or resident in this process."""
    return [
        torch.cuda.max_memory_allocated(device) if device.type == "cuda" else get_peak_resident_bytes()
        for device in devices
    ]


def describe_environment() -> dict[str, object]:
    """Return the device and the flags that decide how this process rounds numbers."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    environment = describe_model_environment(torch.nn.LayerNorm(1, device=device))
    return {"device": environment["device"], "flags": environment["flags"]}
