"""What this machine has, asked without importing a framework."""

import os
import platform
import resource
import sys
from typing import Any

import psutil
import pynvml


def cores() -> int:
    """CPU cores that this process may use."""
    return len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1


def visible_gpus() -> int:
    """NVIDIA GPUs that a framework started now would see; an empty CUDA_VISIBLE_DEVICES hides them all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    if visible is None:
        return count
    return min(count, len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")]))


def only_gpu(index: int | None) -> dict[str, str]:
    """The environment of a process that is to see only the `index`-th of the visible GPUs, or none of them."""
    if not visible_gpus():
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(visible_gpus())))
    return {"CUDA_VISIBLE_DEVICES": "" if index is None else visible.split(",")[index]}


def peak_resident_bytes() -> int:
    """Peak resident memory of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def describe() -> dict[str, Any]:
    """The hardware entry of summary.json."""
    return {
        "machine": platform.machine(),
        "processor": platform.processor() or platform.machine(),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": visible_gpus(),
    }
