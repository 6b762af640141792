"""What a rank does in some steps, as a trace for ui.perfetto.dev or chrome://tracing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity


@contextmanager
def profile(path: Path) -> Iterator[None]:
    """Write what this process does in the body to `path`, a Chrome trace that is compressed by gzip."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
