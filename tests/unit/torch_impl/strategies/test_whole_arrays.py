"""Tests of the arrays of a whole state: in memory, or in files without a name."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import UserError
from tests.conftest import MakeConfig
from tests.unit.torch_impl.ready import context_of
from torch_impl.strategies.whole_arrays import WholeArrays


@pytest.fixture
def large_arrays(tmp_path: Path, small_config: MakeConfig) -> WholeArrays:
    config = small_config("strategy=fsdp", "train.checkpoint_gather_bytes=99", f"run_dir={tmp_path / 'run'}")
    (tmp_path / "run").mkdir()
    return WholeArrays(context_of(config), 100)


def test_a_small_state_stays_in_memory(small_config: MakeConfig) -> None:
    context = context_of(small_config("strategy=fsdp", "train.checkpoint_gather_bytes=100"))
    assert type(WholeArrays(context, 100).allocate((2, 3), torch.float32)) is np.ndarray


def test_a_large_state_is_in_files_that_leave_nothing(large_arrays: WholeArrays, tmp_path: Path) -> None:
    array = large_arrays.allocate((2, 3), torch.float64)
    assert isinstance(array, np.memmap)
    torch.from_numpy(array).copy_(torch.arange(6.0).view(2, 3))
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert large_arrays.allocate((0, 3), torch.float32).shape == (0, 3)
    assert not any((tmp_path / "run").iterdir())


def test_a_full_disk_is_an_error_of_one_line(large_arrays: WholeArrays, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", fail)
    with pytest.raises(UserError, match="No space left on device"):
        large_arrays.allocate((2, 3), torch.float32)
