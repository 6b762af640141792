"""Versions, device and flags of the process in which a script trains, and its rank."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Callable

import numpy as np
import torch

from common.recording.record_format import Environment

LIBRARIES = ("transformers", "accelerate", "lightning", "pytorch_lightning", "deepspeed", "peft", "torchvision", "timm")


def describe_environment(model: torch.nn.Module) -> Environment:
    """Describe the environment in which a model is trained."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    libraries = {name: getattr(sys.modules.get(name), "__version__", None) for name in LIBRARIES}
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return {
        "versions": {**versions, **{name: str(version) for name, version in libraries.items() if version}},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "flags": {**_read_flags(), "world_size": find_rank()[1], **read_autocast(device.type)},
    }


def read_autocast(device_type: str) -> dict[str, object]:
    """Return the flag "autocast": the current type of autocast, such as "bfloat16", or None: off."""
    if hasattr(torch, "get_autocast_dtype"):
        is_enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    elif device_type == "cuda":
        is_enabled, dtype = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
    else:
        is_enabled, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    return {"autocast": str(dtype).replace("torch.", "") if is_enabled else None}


def read_layer_autocast(layer: torch.nn.Module) -> object:
    """Return the type of autocast on the device of a layer; None: off."""
    device_type = next((parameter.device.type for parameter in layer.parameters(recurse=False)), "cpu")
    return read_autocast(device_type)["autocast"]


def find_rank() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    # torchrun sets these variables, and the script may start its process group later
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if rank.isdecimal() and size.isdecimal() and int(rank) < int(size):
        return int(rank), int(size)
    warnings.warn(
        f"RANK={rank} is not a rank of WORLD_SIZE={size} processes, so one process is recorded; start the script "
        "with torchrun, or unset both variables",
        RuntimeWarning,
        stacklevel=1,
    )
    return 0, 1


def _read_flags() -> dict[str, object]:
    readers: dict[str, Callable[[], object]] = {
        "tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": lambda: torch.backends.cudnn.allow_tf32,
        "tf32_override": lambda: os.environ.get("NVIDIA_TF32_OVERRIDE"),
        "matmul_precision": torch.get_float32_matmul_precision,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "threads": torch.get_num_threads,
        "inter_op_threads": torch.get_num_interop_threads,
        "onednn": lambda: torch.backends.mkldnn.enabled,
        "cpu_capability": lambda: torch.backends.cpu.get_cpu_capability(),  # missing in PyTorch 2.0
        "default_dtype": lambda: str(torch.get_default_dtype()).replace("torch.", ""),
        "seed": torch.initial_seed,
    }
    flags: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions warn about names that older versions need
        for name, read in readers.items():
            try:
                flags[name] = read()
            except Exception:  # a version without this flag, or one that refuses to read it
                flags[name] = None
    return flags
