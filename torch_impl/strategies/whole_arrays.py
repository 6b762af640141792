"""Arrays of a whole state, which the chief fills with the parts of the ranks to save a checkpoint."""

import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from common.errors import build_write_error
from common.run.context import RunContext

ALIGNMENT = 8  # bytes: every array begins at a multiple of it, so that its elements are aligned

Shape = tuple[int, ...]


def allocate_whole_arrays(context: RunContext, parts: Mapping[str, tuple[Shape, torch.dtype]]) -> dict[str, np.ndarray]:
    """Return arrays with arbitrary values, by name.

    If they need more than `train.checkpoint_gather_bytes`, they lie in a memory-mapped file in the run directory. The
    file has no name and disappears with the arrays. The system writes its pages to the disk if it needs the memory.

    Args:
        context: The context of the run.
        parts: The shape and the type of each array, by name.

    Raises:
        UserError: The disk is full.
    """
    types = {name: torch.empty(0, dtype=dtype).numpy().dtype for name, (_, dtype) in parts.items()}
    sizes = {name: math.prod(shape) * types[name].itemsize for name, (shape, _) in parts.items()}
    if sum(sizes.values()) <= context.config.train.checkpoint_gather_bytes or not any(sizes.values()):
        return {name: np.empty(shape, types[name]) for name, (shape, _) in parts.items()}
    memory = _map_memory(context.run_dir, sum(size + -size % ALIGNMENT for size in sizes.values()))
    arrays, start = {}, 0
    for name, (shape, _) in parts.items():
        arrays[name] = memory[start : start + sizes[name]].view(types[name]).reshape(shape)
        start += sizes[name] + -sizes[name] % ALIGNMENT
    return arrays


def _map_memory(directory: Path, size: int) -> np.ndarray:
    """Return bytes of a file without a name. Raise UserError if the disk is full."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            # Reserve the space: on a full disk, the first access to the memory would end the process.
            getattr(os, "posix_fallocate", _extend)(file.fileno(), 0, size)
            return np.memmap(file, np.uint8, "r+", shape=(size,))
    except OSError as error:
        raise build_write_error(directory, error) from error


def _extend(descriptor: int, offset: int, size: int) -> None:
    """Extend a file on a system without posix_fallocate, such as macOS."""
    os.ftruncate(descriptor, offset + size)
