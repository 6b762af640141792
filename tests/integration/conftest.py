"""Fixtures of runs on two hosts."""

import subprocess
import sys
from typing import Any

import pytest

from benchmarks.two_hosts import TwoHosts
from common.training.rows import read_rows
from tests.integration.host_commands import SMALL, STEPS, Place


@pytest.fixture(scope="module")
def place(hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(hosts, tmp_path_factory.mktemp("hosts"))


@pytest.fixture(scope="module")
def single(place: Place) -> list[dict[str, Any]]:
    """The rows of one process on one host, which also builds the cache."""
    command = [sys.executable, "-m", "torch_impl.train", f"run_dir={place.directory / 'single'}"]
    command += [f"cache_dir={place.directory / 'cache'}", f"train.steps={STEPS}", *SMALL]
    done = subprocess.run(command, cwd=place.directory, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return read_rows(place.directory / "single" / "metrics.jsonl")
