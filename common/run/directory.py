"""The run directory: config, metrics, evaluations, TensorBoard events and the summary. Only the chief writes it."""

import json
import logging
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import IO, Any

sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))  # its event writer then imports no TensorFlow

from filelock import FileLock, Timeout  # noqa: E402
from tensorboard.compat.proto.event_pb2 import Event  # noqa: E402
from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: E402
from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: E402

from common import hardware  # noqa: E402
from common.cluster.processes import RESTARTS, interruptible  # noqa: E402
from common.config import schema as configs  # noqa: E402
from common.config.schema import Config  # noqa: E402
from common.errors import Interrupted, UserError, cannot_be_written  # noqa: E402
from common.run.checkpoint import Position  # noqa: E402

log = logging.getLogger("lockstep")

RUNS = Path("runs")
ROWS = ("metrics.jsonl", "evals.jsonl", "traffic.jsonl")
LOCK, LOCK_SECONDS = ".lock", 5.0  # the processes of a run that was killed are gone sooner
TRAIN_SCALARS = ("loss", "learning_rate", "grad_norm")
PACKAGES = {"torch": ("torch", "transformers"), "tf": ("tensorflow", "keras", "keras-hub")}


@contextmanager
def new_run_dir(config: Config, framework: str) -> Iterator[Path]:
    """Create the directory of a run and write its config, or with resume=auto enter it again.

    It is this process's alone until it ends. What was created goes when the body raises UserError; where it is
    interrupted, the summary says so.
    """
    was_there = config.run_dir is not None and Path(config.run_dir).expanduser().exists()
    run_dir = _create(config, framework)
    config.run_dir = str(run_dir)
    _check_new(run_dir, config)  # before the lock leaves its file in somebody's directory
    with _locked(run_dir), interruptible():
        _check_new(run_dir, config)  # another run may have come meanwhile
        try:
            if not (run_dir / "config.yaml").exists():
                configs.save(config, run_dir / "config.yaml")
            yield run_dir
        except Interrupted as interruption:
            write_summary(run_dir, facts(config, framework, {}), "interrupted", {}, str(interruption))
            raise
        except UserError:
            if not was_there and {path.name for path in run_dir.iterdir()} <= {"config.yaml", LOCK}:
                shutil.rmtree(run_dir)
                if run_dir.parent == RUNS and not any(RUNS.iterdir()):
                    RUNS.rmdir()
            raise


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    lock = FileLock(run_dir / LOCK)
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise UserError(f"run_dir={run_dir}: another run is using it; choose another, or end that one first") from None
    try:
        yield
    finally:
        lock.release()


def _check_new(run_dir: Path, config: Config) -> None:
    found = {path.name for path in run_dir.iterdir()} - {LOCK}
    if found and (config.resume != "auto" or "config.yaml" not in found):
        raise UserError(
            f"run_dir={run_dir}: is not empty; a run has a directory of its own, choose another"
            + (", or go on with this run by resume=auto" if "config.yaml" in found else "")
        )


def _create(config: Config, framework: str) -> Path:
    node = f"-node{config.cluster.node}" if config.cluster.node else ""  # the others only keep their train.log
    try:
        if config.run_dir is not None:
            run_dir = Path(config.run_dir + node).expanduser()
            run_dir.mkdir(parents=True, exist_ok=True)
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


def chief_run_dir(config: Config) -> Path:
    """The directory of the run's chief, as this host sees it."""
    assert config.run_dir is not None
    return Path(config.run_dir.removesuffix(f"-node{config.cluster.node}") if config.cluster.node else config.run_dir)


def facts(config: Config, framework: str, fingerprints: dict[str, str]) -> dict[str, Any]:
    """What summary.json says of a run however it ends."""
    names = ("lockstep", "numpy", *PACKAGES[framework])
    return {
        "framework": framework,
        "strategy": config.strategy.name,
        "replicas": config.strategy.replicas,
        "restarts": int(os.environ.get(RESTARTS, "0")),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "fingerprints": fingerprints,
        "versions": {"python": sys.version.split()[0], **{name: metadata.version(name) for name in names}},
        "hardware": hardware.describe(),
    }


def write_summary(
    run_dir: Path, about: dict[str, Any], status: str, report: dict[str, Any], error: str | None = None
) -> dict[str, Any]:
    """Write summary.json from what the run's files hold. `status` is completed, interrupted or failed.

    report: of the strategy; see common.training.loop.Strategy.
    """
    untimed = configs.load(run_dir / "config.yaml").train.warmup_steps_untimed + report.get("resumed_from", 0)
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
    with suppress(OSError):  # a full disk is the error then, and has been told of
        write_whole(run_dir / "summary.json", json.dumps(summary, indent=1) + "\n")
    return summary


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a JSONL file; a last line that a killed writer left unfinished is left out."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def keep_rows(run_dir: Path, position: Position) -> list[dict[str, Any]]:
    """Drop the rows past a position, which will come again. Returns those of metrics.jsonl and evals.jsonl."""
    kept = []
    for name in ROWS:
        evaluated = name != "evals.jsonl" or position.validation is not None
        last = position.step if evaluated else position.step - 1
        if (run_dir / name).exists():
            rows = [row for row in read_rows(run_dir / name) if row["step"] <= last]
            write_whole(run_dir / name, "".join(json.dumps(row) + "\n" for row in rows))
            kept += rows if name != "traffic.jsonl" else []
    return kept


def write_whole(path: Path, text: str) -> None:
    """Replace a file: it has the old text or the new."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    os.replace(partial, path)


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
    """Writes the rows of a run as they come; whole lines only, so that a killed run leaves valid files.

    start: where the run goes on from; the rows past it, which will come again, are dropped.
    """

    def __init__(self, run_dir: Path, start: Position) -> None:
        self.run_dir = run_dir
        kept = keep_rows(run_dir, start)
        shutil.rmtree(run_dir / "tensorboard", ignore_errors=True)
        self._metrics = (run_dir / "metrics.jsonl").open("ab")
        self._evals = (run_dir / "evals.jsonl").open("ab")
        self._traffic: IO[bytes] | None = None  # only some strategies have any
        self._events = EventFileWriter(str(run_dir / "tensorboard"))
        for row in kept:
            self._scalars(row)

    def steps(self, rows: list[dict[str, Any]]) -> None:
        """Append rows of metrics.jsonl."""
        _append(self._metrics, rows)
        for row in rows:
            self._scalars(row)

    def traffic(self, rows: list[dict[str, Any]]) -> None:
        """Append rows of traffic.jsonl."""
        if rows and self._traffic is None:
            self._traffic = (self.run_dir / "traffic.jsonl").open("ab")
        if self._traffic is not None:
            _append(self._traffic, rows)

    def evaluation(self, row: dict[str, Any]) -> None:
        """Append a row of evals.jsonl."""
        _append(self._evals, [row])
        self._scalars(row)

    def _scalars(self, row: dict[str, Any]) -> None:
        split, keys = ("validation", ("loss", "accuracy")) if "accuracy" in row else ("train", TRAIN_SCALARS)
        values = [Summary.Value(tag=f"{split}/{key}", simple_value=row[key]) for key in keys]
        try:
            self._events.add_event(Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values)))
        except OSError as error:
            raise cannot_be_written(self.run_dir / "tensorboard", error) from error

    def sync(self) -> None:
        """See the rows to the disk: none may be missing where a checkpoint after them has outlived the machine's fall.

        Raises UserError where the disk is full.
        """
        for file in filter(None, (self._metrics, self._evals, self._traffic)):
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise cannot_be_written(file.name, error) from error

    def close(self) -> None:
        """Flush and close every file."""
        for file in filter(None, (self._metrics, self._evals, self._traffic, self._events)):
            with suppress(OSError):  # a full disk has been told of
                file.close()


def _append(file: IO[bytes], rows: list[dict[str, Any]]) -> None:
    """Add whole rows. Raises UserError where the disk is full; what it took of a row is left out when it is read."""
    try:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        file.flush()
    except OSError as error:
        raise cannot_be_written(file.name, error) from error
