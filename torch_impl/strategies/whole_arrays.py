"""Arrays of a whole state, which the chief fills with the parts of the ranks to save a checkpoint."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from common.errors import build_write_error
from common.run.context import RunContext


class WholeArrays:
    """Allocator of the arrays of a whole state.

    The arrays of a state of more than `train.checkpoint_gather_bytes` are memory-mapped files in the run directory,
    which have no name and disappear with the arrays. The system writes them to the disk if it needs the memory.
    """

    def __init__(self, context: RunContext, state_bytes: int) -> None:
        """Decide where the arrays are. state_bytes: the size of the whole state."""
        self.directory: Path | None = None
        if state_bytes > context.config.train.checkpoint_gather_bytes:
            self.directory = context.run_dir

    def allocate(self, shape: Sequence[int], torch_dtype: torch.dtype) -> np.ndarray:
        """Return an array with arbitrary values. Raise UserError if the disk is full."""
        dtype = torch.empty(0, dtype=torch_dtype).numpy().dtype
        size = int(np.prod(shape)) * dtype.itemsize
        if self.directory is None or not size:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self.directory) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk would end the process at the first access
                return np.memmap(file, dtype, "r+", shape=tuple(shape))
        except OSError as error:
            raise build_write_error(self.directory, error) from error
