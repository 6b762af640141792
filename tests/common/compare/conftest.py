"""Run directories as a training run leaves them, without training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common import config as configs
from tests.conftest import MakeConfig

STEPS = 20
MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path, make_config: MakeConfig) -> MakeRun:
    """Write a run: `change(rows)` edits its metrics, other arguments are entries of summary.json."""

    def make(
        name: str,
        *overrides: str,
        change: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
        **summary: Any,
    ) -> Path:
        run_dir = tmp_path / "runs" / name
        run_dir.mkdir(parents=True)
        configs.save(make_config(*overrides), run_dir / "config.yaml")
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
