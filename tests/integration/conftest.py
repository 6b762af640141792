"""Fixtures for runs on two hosts."""

import subprocess
import sys
from typing import Any

import pytest

from benchmarks.two_hosts import TwoHosts
from common.training.rows import read_rows
from tests.conftest import SMALL_IMAGES
from tests.integration.host_commands import STEPS, HostLauncher


@pytest.fixture(scope="module")
def launcher(hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> HostLauncher:
    """A launcher of runs on two hosts, which share a cache."""
    return HostLauncher(hosts, tmp_path_factory.mktemp("hosts"))


@pytest.fixture(scope="module")
def single(launcher: HostLauncher) -> list[dict[str, Any]]:
    """The rows of a run of one process on one host. The run also builds the cache."""
    command = [sys.executable, "-m", "torch_impl.train", f"run_dir={launcher.directory / 'single'}"]
    command += [f"cache_dir={launcher.directory / 'cache'}", f"train.steps={STEPS}", *SMALL_IMAGES]
    completed = subprocess.run(command, cwd=launcher.directory, capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, completed.stderr
    return read_rows(launcher.directory / "single" / "metrics.jsonl")
