"""Files of a directory from somebody else that could be read forever."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import UserError
from common.records.files import read_bytes
from common.records.rows import iterate_rows


@pytest.mark.parametrize("read", [read_bytes, lambda file: list(iterate_rows(file, []))])
@pytest.mark.parametrize("is_pipe", [True, False])
def test_pipes_and_devices_are_not_read(tmp_path: Path, read: Callable[[Path], object], is_pipe: bool) -> None:
    file = tmp_path / "state.json"
    if is_pipe:
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"state.json: is a pipe or a device, not a file; remove it$"):
        read(file)


def test_a_name_that_is_too_long_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"aa: cannot be read: .*too long"):
        read_bytes(tmp_path / ("a" * 300))
