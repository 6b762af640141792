import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SMALL_CORPUS, SMALL_MODEL

pytestmark = pytest.mark.slow


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "common.prepare", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_command(tmp_path: Path) -> None:
    arguments = (f"cache_dir={tmp_path}", *SMALL_CORPUS, *SMALL_MODEL)
    done = command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    token_cache, checkpoint = done.stdout.splitlines()[-2:]
    assert re.fullmatch(rf"cache: {tmp_path}/tokens-\w{{16}} \(60 training and 12 validation examples\)", token_cache)
    assert re.fullmatch(rf"initial checkpoint: {tmp_path}/weights-\w{{16}}", checkpoint)


def test_command_with_a_users_error(tmp_path: Path) -> None:
    done = command(f"cache_dir={tmp_path / 'cache'}", "data=files", "data.train=missing.csv", "data.validation=x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: data.train: no such file: missing.csv\n"
    assert not (tmp_path / "cache").exists()
