"""The hardware of this machine, found without importing a framework."""

import ctypes
import math
import os
import platform
import re
import resource
import shutil
import sys
from pathlib import Path

import psutil
import pynvml

CGROUP = Path("/sys/fs/cgroup")
CPU_INFO = Path("/proc/cpuinfo")
VECTOR_INSTRUCTIONS = re.compile("avx|fma|amx|asimd|sve|bf16")  # beginnings of their names in CPU_INFO


def count_cores() -> int:
    """Return the number of CPU cores that this process may use, by its affinity and the limit of its control group."""
    count = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(count, _read_cpu_limit())))


def _read_cpu_limit() -> float:
    """Return the CPU limit of this process's control group, such as a container, in CPU seconds per second.

    Return infinity if there is no limit.
    """
    try:
        if (path := CGROUP / "cpu.max").exists():  # version 2
            quota, period = path.read_text().split()
        else:
            quota, period = ((CGROUP / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return math.inf if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf


def has_cpp_compiler() -> bool:
    """Check whether the compiler exists that PyTorch uses: the one in CXX, or the default of the platform."""
    return shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) is not None


def count_visible_gpus() -> int:
    """Return the number of NVIDIA GPUs that a framework would find now; an empty CUDA_VISIBLE_DEVICES hides all."""
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


def list_gpu_names() -> list[str]:
    """Return the name of each NVIDIA GPU of this machine, such as "NVIDIA H100 80GB HBM3", hidden ones too."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
    return names


def select_gpu(index: int | None) -> dict[str, str]:
    """Return the environment variables with which a process finds only one of the visible GPUs, or no GPU."""
    if not count_visible_gpus():
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count_visible_gpus())))
    return {"CUDA_VISIBLE_DEVICES": "" if index is None else visible.split(",")[index]}


def hide_gpus() -> None:
    """Let the framework that this process will import find no GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def keep_freed_memory() -> None:
    """Keep the memory that this process frees. To get it back page by page would take a tenth of a small step.

    glibc's malloc then maps only blocks of 32 MiB and more, which is the largest limit that it accepts. It returns no
    other memory to the system. With another C library this function does nothing.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # the numbers of these parameters in malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(mmap_threshold, 32 << 20)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(top_pad, 64 << 20)


def get_peak_resident_bytes() -> int:
    """Return the peak resident memory of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def describe_hardware() -> dict[str, str | int]:
    """Return the entry `hardware` of summary.json."""
    return {
        "machine": platform.machine(),
        "processor": _name_processor(),
        "instruction_sets": _list_instruction_sets(),
        "cores": count_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": (gpus := count_visible_gpus()),
        "gpu": ", ".join(sorted(set(list_gpu_names()))) if gpus else "",
    }


def _list_instruction_sets() -> str:
    """Return the sets of vector instructions of the processor, such as "avx2 avx512f fma"; empty outside of Linux."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    flags = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return " ".join(sorted(flag for flag in flags[0] if VECTOR_INSTRUCTIONS.match(flag))) if flags else ""


def _name_processor() -> str:
    """Return the model of the processor; outside of Linux, what Python reports."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
