"""Asynchronous runs: every batch is trained on once, and the rows name its worker and staleness."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from common.data.batch_plan import compute_shard_bounds, steps_per_epoch
from common.training.rows import read_rows
from tests.conftest import PACED, SMALL_IMAGES, in_matrix

EXAMPLES, BATCH, WORKERS, EPOCHS = 1437, 150, 2, 4
CLUSTER = [f"strategy.workers={WORKERS}", "strategy.parameter_servers=2"]
ONE_SERVER = "strategy.parameter_servers=1"  # every process of TensorFlow takes long to start; parity tests have two
LEARNERS = 3  # workers of the long runs


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the cache that the runs of this file share."""
    return tmp_path_factory.mktemp("cache")


def train(framework: str, run_dir: Path, cache: Path, *overrides: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Train asynchronously. Return the rows and the summary."""
    command = [sys.executable, "-m", f"{framework}_impl.train", "strategy=parameter_server", *CLUSTER, *overrides]
    command += [f"run_dir={run_dir}", f"cache_dir={cache}", *SMALL_IMAGES]
    # TensorFlow's coordinator prepares all batches: if it paced them, no two workers would compute at the same time.
    command += [PACED] if framework == "torch" else []
    command += [f"train.epochs={EPOCHS}", "train.log_every=10"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    return read_rows(run_dir / "metrics.jsonl"), json.loads((run_dir / "summary.json").read_text())


def assert_every_batch_once(rows: list[dict[str, Any]], parts: int) -> None:
    """Check that the rows are the parts of the planned global batches, with the planned number of examples."""
    steps = EPOCHS * steps_per_epoch(EXAMPLES, BATCH)
    sizes: dict[tuple[int, int], int] = {}
    for step in range(1, steps + 1):
        size = BATCH if step % (steps // EPOCHS) else EXAMPLES % BATCH
        bounds = compute_shard_bounds(size, parts)
        sizes |= {(step, part): int(bounds[part + 1] - bounds[part]) for part in range(parts)}
    examples = [
        row["examples"] - before["examples"] for before, row in zip([{"examples": 0}, *rows], rows, strict=False)
    ]
    trained_sizes = {(row["batch"], row["part"]): count for row, count in zip(rows, examples, strict=True)}
    assert len(rows) == len(trained_sizes) and trained_sizes == sizes
    assert rows[-1]["examples"] == EPOCHS * EXAMPLES
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_no_batch_is_lost_or_doubled(framework: str, cache: Path, tmp_path: Path) -> None:
    rows, summary = train(framework, tmp_path / "run", cache)
    assert_every_batch_once(rows, WORKERS)
    assert {row["worker"] for row in rows} == set(range(WORKERS))
    assert summary["version"] == summary["steps"] == len(rows)
    stalenesses = Counter(str(row["staleness"]) for row in rows)
    assert summary["staleness"] == stalenesses
    assert max(map(int, stalenesses)) > 0  # no worker waits for the others
    assert len(summary["peak_memory_bytes"]) == WORKERS and min(summary["peak_memory_bytes"]) > 1e7
    assert summary["status"] == "completed" and summary["replicas"] == WORKERS


@pytest.mark.parametrize("framework", ["torch", in_matrix("tf")])
def test_staleness_is_bounded(framework: str, cache: Path, tmp_path: Path) -> None:
    rows, summary = train(
        framework, tmp_path / "run", cache, "strategy.max_staleness=1", "strategy.batch=global", ONE_SERVER
    )
    assert_every_batch_once(rows, 1)
    assert summary["version"] == len(rows)
    assert {row["staleness"] for row in rows} <= {0, 1}


@pytest.mark.bench
@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_asynchronous_training_learns_as_much(framework: str, tmp_path: Path) -> None:
    """Train two epochs of the built-in corpus, 48,000 examples: 1,500 synchronous or 4,500 asynchronous updates."""
    servers = ["strategy=parameter_server", f"strategy.workers={LEARNERS}", "strategy.parameter_servers=2"]
    summaries = {}
    for strategy in (["strategy=single"], servers):
        run_dir = tmp_path / strategy[0].partition("=")[2]
        command = [sys.executable, "-m", f"{framework}_impl.train", "experiment=learn"]
        command += ["train.steps=1500", "optimizer.learning_rate=3e-4"]
        command += [*strategy, "train.eval_every=null", f"run_dir={run_dir}", f"cache_dir={tmp_path / 'cache'}"]
        subprocess.run(command, check=True, timeout=1200)
        summaries[run_dir.name] = json.loads((run_dir / "summary.json").read_text())
    synchronous, asynchronous = summaries["single"], summaries["parameter_server"]
    stalenesses = {int(staleness): count for staleness, count in asynchronous["staleness"].items()}
    mean = sum(staleness * count for staleness, count in stalenesses.items()) / asynchronous["steps"]
    print(f"{framework}: {synchronous['accuracy']:.4f} | {asynchronous['accuracy']:.4f}, mean staleness {mean:.2f}")
    assert asynchronous["version"] == asynchronous["steps"] == LEARNERS * synchronous["steps"]
    assert synchronous["accuracy"] > 0.75
    assert asynchronous["accuracy"] >= synchronous["accuracy"] - 0.02
    assert 0.5 <= mean <= 1.5 * (LEARNERS - 1)
