"""Recorders of training scripts in PyTorch: a plain loop, Accelerate, Hugging Face's Trainer, and Lightning."""

from __future__ import annotations

from typing import Any

from torch_impl.record.callbacks import build_callback
from torch_impl.record.recorder import Recorder

__all__ = ["LightningRecorder", "Recorder", "TrainerRecorder"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  a class that derives from one of a library that may be missing
    if name in ("TrainerRecorder", "LightningRecorder"):
        globals()[name] = build_callback(name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
