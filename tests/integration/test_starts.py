"""Repeated starts of many processes: no hang, no port conflict, no process left. `make bench-starts` runs them."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

STARTS = 20
RUN = ["model=convnet", "train.steps=3", "train.log_every=1"]
SERVERS = ["strategy=parameter_server", "strategy.workers=3", "strategy.parameter_servers=2"]

pytestmark = pytest.mark.bench


@pytest.mark.parametrize(
    ("framework", "strategy"),
    [("tf", ["strategy=multiworker", "strategy.workers=3"]), ("tf", SERVERS), ("torch", SERVERS)],
)
def test_many_starts_in_a_row(framework: str, strategy: list[str], tmp_path: Path) -> None:
    seconds = []
    for start in range(STARTS):
        run_dir = tmp_path / f"run-{start}"
        command = [sys.executable, "-m", f"{framework}_impl.train", *strategy, *RUN, f"run_dir={run_dir}"]
        started_at = time.monotonic()
        result = subprocess.run(
            [*command, f"cache_dir={tmp_path / 'cache'}"], capture_output=True, text=True, timeout=240
        )
        seconds.append(time.monotonic() - started_at)
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stderr == ""
        assert not [process for process in psutil.process_iter() if str(run_dir) in " ".join(_read_command(process))]
    print(f"{framework} {strategy[0]}: {STARTS} starts, {min(seconds):.1f} to {max(seconds):.1f} s each")


def _read_command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
