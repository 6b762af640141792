"""What a rank does in some steps, as a trace for ui.perfetto.dev or chrome://tracing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, _ExperimentalConfig, record_function


@contextmanager
def profile(path: Path) -> Iterator[None]:
    """Write what this process does in the body to `path`, a Chrome trace that is compressed by gzip."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    threads = _ExperimentalConfig(profile_all_threads=True)  # not this one alone: allreduce has one of its own
    with _annotated_modules(), torch.profiler.profile(activities=activities, experimental_config=threads) as profiler:
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))


@contextmanager
def _annotated_modules() -> Iterator[None]:
    """In the body every forward pass of a module is annotated as `module: <its class>`."""
    local = threading.local()  # dp's replicas are threads

    def enter(module: Module, inputs: Any) -> None:
        scope = record_function(f"module: {type(module).__name__}")
        scope.__enter__()
        local.__dict__.setdefault("scopes", []).append(scope)

    def leave(module: Module, inputs: Any, outputs: Any) -> None:
        local.scopes.pop().__exit__(None, None, None)

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
