"""Profiles of a rank's steps, as traces for ui.perfetto.dev or chrome://tracing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, _ExperimentalConfig, record_function


@contextmanager
def profile(path: Path) -> Iterator[None]:
    """Profile this process within the context, and write a gzip-compressed Chrome trace to a path."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    all_threads = _ExperimentalConfig(profile_all_threads=True)  # strategy=allreduce has a thread for communication
    annotated = _annotate_modules()
    with annotated, torch.profiler.profile(activities=activities, experimental_config=all_threads) as profiler:
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))


@contextmanager
def _annotate_modules() -> Iterator[None]:
    """Annotate the forward pass of every module within the context as `module: <class of the module>`."""
    local = threading.local()  # a stack of annotations for each thread, because the replicas of strategy=dp are threads

    def enter(module: Module, inputs: object) -> None:
        annotation = record_function(f"module: {type(module).__name__}")
        annotation.__enter__()
        local.__dict__.setdefault("annotations", []).append(annotation)

    def leave(module: Module, inputs: object, outputs: object) -> None:
        local.annotations.pop().__exit__(None, None, None)

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
