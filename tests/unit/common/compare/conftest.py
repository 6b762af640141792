"""Run directories as training writes them, without training."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from common.config.compose import save_config
from common.profile.profile import FILE
from common.profile.trace import TraceEvent
from tests.conftest import MakeConfig

STEPS = 20
CHANGED = [{"step": 1, "replicas": 3}, {"step": 8, "replicas": 2}, {"step": 15, "replicas": 4}]
MakeRun = Callable[..., Path]


def write_profile(run_dir: Path, events: Sequence[TraceEvent]) -> None:
    """The trace of a run's first rank."""
    path = run_dir / FILE
    path.parent.mkdir()
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))


@pytest.fixture
def make_run(tmp_path: Path, make_config: MakeConfig) -> MakeRun:
    """Write a run: `change(rows)` edits its metrics, `traffic` are rows, others are entries of summary.json."""

    def make(
        name: str,
        *overrides: str,
        change: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
        traffic: list[dict[str, Any]] | None = None,
        **summary: Any,
    ) -> Path:
        run_dir = tmp_path / "runs" / name
        run_dir.mkdir(parents=True)
        save_config(make_config(*overrides), run_dir / "config.yaml")
        rows = [
            {
                "step": step,
                "loss": 1.1 - step / 100,
                "examples": 32 * step,
                "tokens": 700 * step,
                "learning_rate": 1e-3,
                "grad_norm": 1 + step / 10,
                "seconds": step / 20,
            }
            for step in range(1, STEPS + 1)
        ]
        change(rows)
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        evaluation = {"step": STEPS, "examples": 640, "loss": 0.9, "accuracy": 0.5, "count": 60, "duration": 0.1}
        (run_dir / "evals.jsonl").write_text(json.dumps(evaluation) + "\n")
        if traffic is not None:
            (run_dir / "traffic.jsonl").write_text("".join(json.dumps(row) + "\n" for row in traffic))
        filled = {
            "framework": "torch",
            "strategy": "ddp",
            "replicas": 2,
            "started": "2026-01-01T00:00:00+00:00",
            "fingerprints": {"token_cache": "t", "initial_weights": "w"},
            "versions": {"python": "3.11"},
            "hardware": {"cores": 2},
            "status": "completed",
            "steps": STEPS,
            "examples_per_second": 640.0,
            "tokens_per_second": 14000.0,
            "peak_memory_bytes": [1 << 28, 1 << 28],
            "final_loss": 0.9,
            "accuracy": 0.5,
            **summary,
        }
        (run_dir / "summary.json").write_text(json.dumps(filled))
        return run_dir

    return make


@pytest.fixture
def make_asynchronous(make_run: MakeRun) -> MakeRun:
    """Write a parameter server's run of two workers: an update for each half of a batch, in the order of arrival."""

    def halve(rows: list[dict[str, Any]]) -> None:
        whole = list(rows)
        rows.clear()
        for row in whole:
            for worker in (1, 0):
                step = len(rows) + 1
                halved = {"step": step, "examples": 16 * step, "tokens": 350 * step, "seconds": step / 40}
                rows.append({**row, **halved, "loss": row["loss"] + 0.1 * (worker - 0.4)})
                rows[-1] |= {"staleness": min(step - 1, 1), "worker": worker, "batch": row["step"], "part": worker}

    def make(name: str, *overrides: str, **entries: Any) -> Path:
        filled = {"strategy": "parameter_server", "staleness": {"0": 1, "1": 2 * STEPS - 1}, **entries}
        return make_run(name, "strategy=parameter_server", *overrides, change=halve, **filled)

    return make


@pytest.fixture
def make_dp(make_run: MakeRun) -> MakeRun:
    """Write a run of DataParallel on two replicas; `gathered` are the bytes of logits that the first one gathers."""

    def make(name: str, loss: str = "gathered", gathered: int = 192, **entries: Any) -> Path:
        moved = {"scattered": [0, 4096], "broadcast": [1 << 20, 0], "gathered": [gathered, 0], "reduced": [0, 1 << 20]}
        held = {"logits": [384, 0] if loss == "gathered" else [192, 192], "memory": [3 << 20, 1 << 20]}
        traffic = [{"step": step, **moved, **held} for step in range(1, STEPS + 1)]
        return make_run(name, "strategy=dp", f"strategy.loss={loss}", strategy="dp", **{"traffic": traffic, **entries})

    return make
