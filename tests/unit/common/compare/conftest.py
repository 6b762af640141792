"""Run directories as training runs write them, without training."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from common.compare.external.load import load_external_run
from common.compare.runs import Run, load_run
from common.config.compose import save_config
from common.profile.profile import FILE
from common.profile.trace import TraceEvent
from tests.conftest import MakeConfig

STEPS = 20
CHANGED = [{"step": 1, "replicas": 3}, {"step": 8, "replicas": 2}, {"step": 15, "replicas": 4}]
MakeRun = Callable[..., Path]
MakeGroup = Callable[..., list[Run]]
Load = Callable[..., Run]
ConfigTexts = dict[tuple[str, ...], str]


def write_profile(run_dir: Path, events: Sequence[TraceEvent]) -> None:
    """Write the trace of a run's first rank."""
    path = run_dir / FILE
    path.parent.mkdir()
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))


@pytest.fixture(scope="session")
def config_texts() -> ConfigTexts:
    """Return the cache of config.yaml by overrides, because composing a config takes longer than most tests."""
    return {}


@pytest.fixture
def make_run(tmp_path: Path, make_config: MakeConfig, config_texts: ConfigTexts) -> MakeRun:
    """Return a function that writes a run directory.

    Its argument `change` edits the rows of metrics.jsonl, `traffic` are the rows of traffic.jsonl, and all other
    keyword arguments are entries of summary.json.
    """

    def make(
        name: str,
        *overrides: str,
        change: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
        traffic: list[dict[str, Any]] | None = None,
        **summary: Any,
    ) -> Path:
        run_dir = tmp_path / "runs" / name
        run_dir.mkdir(parents=True)
        config = run_dir / "config.yaml"
        if overrides not in config_texts:
            save_config(make_config(*overrides, "cache_dir=cache"), config)
            config_texts[overrides] = config.read_text()
        config.write_text(config_texts[overrides])
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
        content = {
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
        (run_dir / "summary.json").write_text(json.dumps(content))
        return run_dir

    return make


@pytest.fixture
def make_group(make_run: MakeRun) -> MakeGroup:
    """Return a function that writes runs of some seeds. The seed and the step decide the noise of the losses."""

    def make(name: str, *overrides: str, seeds: range = range(5), shift: float = 0.0, **entries: Any) -> list[Run]:
        def change(rows: list[dict[str, Any]], seed: int) -> None:
            for row in rows:
                row["loss"] += 0.01 * ((7 * seed + 3 * row["step"]) % 5) + 0.02 * seed + shift * (1 + seed / 50)

        paths = [
            make_run(
                f"{name}/{seed}",
                *overrides,
                f"train.seed={seed}",
                change=lambda rows, seed=seed: change(rows, seed),
                **entries,
            )
            for seed in seeds
        ]
        return [load_run(path) for path in paths]

    return make


@pytest.fixture
def make_asynchronous(make_run: MakeRun) -> MakeRun:
    """Return a function that writes a run of a parameter server with two workers that take half a batch each."""

    def halve(rows: list[dict[str, Any]]) -> None:
        batches = list(rows)
        rows.clear()
        for row in batches:
            for worker in (1, 0):
                step = len(rows) + 1
                half = {"step": step, "examples": 16 * step, "tokens": 350 * step, "seconds": step / 40}
                rows.append({**row, **half, "loss": row["loss"] + 0.1 * (worker - 0.4)})
                rows[-1] |= {"staleness": min(step - 1, 1), "worker": worker, "batch": row["step"], "part": worker}

    def make(name: str, *overrides: str, **entries: Any) -> Path:
        summary = {"strategy": "parameter_server", "staleness": {"0": 1, "1": 2 * STEPS - 1}, **entries}
        return make_run(name, "strategy=parameter_server", *overrides, change=halve, **summary)

    return make


@pytest.fixture
def make_dp(make_run: MakeRun) -> MakeRun:
    """Return a function that writes a run of DataParallel; replica 0 gathers `gathered` bytes of logits."""

    def make(name: str, loss: str = "gathered", gathered: int = 192, **entries: Any) -> Path:
        moved = {"scattered": [0, 4096], "broadcast": [1 << 20, 0], "gathered": [gathered, 0], "reduced": [0, 1 << 20]}
        held = {"logits": [384, 0] if loss == "gathered" else [192, 192], "memory": [3 << 20, 1 << 20]}
        traffic = [{"step": step, **moved, **held} for step in range(1, STEPS + 1)]
        return make_run(name, "strategy=dp", f"strategy.loss={loss}", strategy="dp", **{"traffic": traffic, **entries})

    return make


def join_rows(*rows: str) -> str:
    """Return the text of a file with these lines."""
    return "\n".join(rows) + "\n"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return a function that writes a file and reads it as a run."""

    def load_content(name: str, content: Any, **columns: str | None) -> Run:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return load_external_run("mine", path, columns)

    return load_content
