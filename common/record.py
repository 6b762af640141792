"""The run directory: config, metrics, evaluations, TensorBoard events and the summary. Only the chief writes it."""

import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import IO, Any

sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))  # its event writer then imports no TensorFlow

from tensorboard.compat.proto.event_pb2 import Event  # noqa: E402
from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: E402
from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: E402

from common import config as configs  # noqa: E402
from common import hardware  # noqa: E402
from common.config import Config  # noqa: E402
from common.errors import UserError  # noqa: E402

log = logging.getLogger("lockstep")

RUNS = Path("runs")
PACKAGES = {"torch": ("torch", "transformers"), "tf": ("tensorflow", "keras", "keras-hub")}


@contextmanager
def new_run_dir(config: Config, framework: str) -> Iterator[Path]:
    """Create the directory of a run and write its config; what it created goes when the body raises UserError."""
    was_there = config.run_dir is not None and Path(config.run_dir).expanduser().exists()
    run_dir = _create(config, framework)
    config.run_dir = str(run_dir)
    try:
        yield run_dir
        configs.save(config, run_dir / "config.yaml")
    except UserError:
        if not was_there and not any(run_dir.iterdir()):
            run_dir.rmdir()
            if run_dir.parent == RUNS and not any(RUNS.iterdir()):
                RUNS.rmdir()
        raise


def _create(config: Config, framework: str) -> Path:
    node = f"-node{config.cluster.node}" if config.cluster.node else ""  # the others only keep their train.log
    try:
        if config.run_dir is not None:
            run_dir = Path(config.run_dir + node).expanduser()
            run_dir.mkdir(parents=True, exist_ok=True)
            if any(run_dir.iterdir()):
                raise UserError(f"run_dir={run_dir}: is not empty; a run has a directory of its own, choose another")
            probe = run_dir / ".writable"
            probe.touch()
            probe.unlink()
            return run_dir
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{config.run_name or f'{framework}-{config.strategy.name}'}{node}"
        for attempt in range(1, 1000):
            run_dir = RUNS / (name if attempt == 1 else f"{name}-{attempt}")
            try:
                run_dir.mkdir(parents=True)
                return run_dir
            except FileExistsError:
                continue
    except OSError as error:
        raise UserError(f"run_dir={error.filename}: cannot be written ({error.strerror}); give run_dir=PATH") from error
    raise UserError(f"run_dir=runs/{name}: a thousand runs have this name already; give run_dir=PATH")


def facts(config: Config, framework: str, fingerprints: dict[str, str]) -> dict[str, Any]:
    """What summary.json says of a run however it ends."""
    names = ("lockstep", "numpy", *PACKAGES[framework])
    return {
        "framework": framework,
        "strategy": config.strategy.name,
        "replicas": config.strategy.replicas,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "fingerprints": fingerprints,
        "versions": {"python": sys.version.split()[0], **{name: metadata.version(name) for name in names}},
        "hardware": hardware.describe(),
    }


def write_summary(
    run_dir: Path, about: dict[str, Any], status: str, report: dict[str, Any], error: str | None = None
) -> dict[str, Any]:
    """Write summary.json from what the run's files hold. `status` is completed, interrupted or failed.

    report: of the strategy; see common.loop.Strategy.
    """
    untimed = configs.load(run_dir / "config.yaml").train.warmup_steps_untimed
    steps, evals = read_rows(run_dir / "metrics.jsonl"), read_rows(run_dir / "evals.jsonl")
    summary = {
        **about,
        "status": status,
        "steps": len(steps),
        **_speed(steps, evals, untimed),
        "peak_memory_bytes": [],
        **report,
        "final_loss": steps[-1]["loss"] if steps else None,
        "accuracy": evals[-1]["accuracy"] if evals else None,
    }
    if stale := Counter(row["staleness"] for row in steps if "staleness" in row):
        summary["staleness"] = {str(staleness): stale[staleness] for staleness in sorted(stale)}
    if error:
        summary["error"] = error
    partial = run_dir / "summary.json.partial"
    partial.write_text(json.dumps(summary, indent=1) + "\n")
    os.replace(partial, run_dir / "summary.json")
    return summary


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a JSONL file; a last line that a killed writer left unfinished is left out."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _speed(steps: list[dict[str, Any]], evals: list[dict[str, Any]], untimed: int) -> dict[str, float | None]:
    """Examples and tokens per second after the first `untimed` steps, evaluations left out."""
    if len(steps) <= untimed:
        return {"examples_per_second": None, "tokens_per_second": None}
    last = steps[-1]
    first = steps[untimed - 1] if untimed else {"step": 0, "examples": 0, "tokens": 0, "seconds": 0.0}
    seconds = last["seconds"] - first["seconds"]
    seconds -= sum(row["duration"] for row in evals if first["step"] <= row["step"] < last["step"])
    if seconds <= 0:
        return {"examples_per_second": None, "tokens_per_second": None}
    return {f"{unit}_per_second": (last[unit] - first[unit]) / seconds for unit in ("examples", "tokens")}


class Recorder:
    """Writes the rows of a run as they come; whole lines only, so that a killed run leaves valid files."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._metrics = (run_dir / "metrics.jsonl").open("a")
        self._evals = (run_dir / "evals.jsonl").open("a")
        self._traffic: IO[str] | None = None  # only some strategies have any
        self._events = EventFileWriter(str(run_dir / "tensorboard"))

    def steps(self, rows: list[dict[str, Any]]) -> None:
        """Append rows of metrics.jsonl."""
        self._metrics.write("".join(json.dumps(row) + "\n" for row in rows))
        self._metrics.flush()
        for row in rows:
            self._event(row, {f"train/{key}": row[key] for key in ("loss", "learning_rate", "grad_norm")})

    def traffic(self, rows: list[dict[str, Any]]) -> None:
        """Append rows of traffic.jsonl."""
        if rows and self._traffic is None:
            self._traffic = (self.run_dir / "traffic.jsonl").open("a")
        if self._traffic is not None:
            self._traffic.write("".join(json.dumps(row) + "\n" for row in rows))
            self._traffic.flush()

    def evaluation(self, row: dict[str, Any]) -> None:
        """Append a row of evals.jsonl."""
        self._evals.write(json.dumps(row) + "\n")
        self._evals.flush()
        self._event(row, {f"validation/{key}": row[key] for key in ("loss", "accuracy")})

    def _event(self, row: dict[str, Any], scalars: dict[str, float]) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._events.add_event(Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values)))

    def close(self) -> None:
        """Flush and close every file."""
        self._metrics.close()
        self._evals.close()
        if self._traffic is not None:
            self._traffic.close()
        self._events.close()
