"""MNIST with every synchronous strategy: 97 % after two epochs. `make bench-parity` runs it, for minutes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parity.strategies import STRATEGIES

DATA = Path(__file__).parents[3] / "shared" / "data" / "mnist"

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(not DATA.exists(), reason=f"needs {DATA}"),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_epochs_reach_97_percent(strategy: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    framework = strategy.partition("-")[0]
    command = [sys.executable, "-m", f"{framework}_impl.train", "experiment=mnist", *STRATEGIES[strategy].split()]
    command += ["data=idx", f"data.directory={DATA}", f"run_dir={tmp_path / 'run'}", "train.log_every=500"]
    subprocess.run([*command, f"cache_dir={tmp_path_factory.getbasetemp() / 'cache'}"], check=True, timeout=900)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    speed = summary["examples_per_second"]
    print(f"{strategy}: {summary['accuracy']:.4f}, {speed:.0f} examples/s")
    assert summary["accuracy"] >= 0.97
