"""Tests of the arrays of a whole state: in memory, or in one file without a name."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import UserError
from common.run.context import RunContext
from tests.conftest import MakeConfig
from tests.unit.torch_impl.ready import context_of
from torch_impl.strategies.whole_arrays import allocate_whole_arrays

PARTS = {
    "odd": ((3, 1), torch.float32),
    "wide": ((2, 3), torch.float64),
    "empty": ((0, 3), torch.float32),
    "number": ((), torch.float64),
}
BYTES = 12 + 48 + 8


@pytest.fixture
def context(tmp_path: Path, small_config: MakeConfig) -> RunContext:
    (tmp_path / "run").mkdir()
    limit = f"train.checkpoint_gather_bytes={BYTES - 1}"
    return context_of(small_config("strategy=fsdp", limit, f"run_dir={tmp_path / 'run'}"))


def test_a_small_state_stays_in_memory(context: RunContext) -> None:
    arrays = allocate_whole_arrays(context, {"wide": PARTS["wide"]})
    assert type(arrays["wide"]) is np.ndarray


def test_a_large_state_is_in_one_file_that_leaves_nothing(context: RunContext) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    arrays = allocate_whole_arrays(context, PARTS)
    assert len([*Path("/proc/self/fd").iterdir()]) <= before + 1  # a system allows few open files
    assert {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == {
        name: (shape, str(dtype).removeprefix("torch.")) for name, (shape, dtype) in PARTS.items()
    }
    assert all(isinstance(array, np.memmap) for array in arrays.values() if array.size)
    for value, array in enumerate(arrays.values()):
        torch.from_numpy(array).fill_(value)
    assert [array.tolist() for array in arrays.values()] == [[[0.0]] * 3, [[1.0] * 3] * 2, [], 3.0]
    assert not any(context.run_dir.iterdir())


def test_a_full_disk_is_an_error_of_one_line(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", fail)
    with pytest.raises(UserError, match="No space left on device"):
        allocate_whole_arrays(context, PARTS)
