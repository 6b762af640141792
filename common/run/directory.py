"""The run directory: created, locked while a run uses it, entered again to resume."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from common.config import compose
from common.config.command_line import describe_job, get_sweep_directory, is_sweep_job
from common.config.schema import Config
from common.errors import Interrupted, UserError
from common.run.summary import restarts, write_aborted_summary
from common.training.stop import interruptible

RUNS = Path("runs")
LOCK, LOCK_SECONDS = ".lock", 5.0  # the processes of a run that was killed have ended by then


@contextmanager
def open_run_dir(config: Config, framework: str, node: int = 0) -> Iterator[Path]:
    """Create the directory of a run and write its config, or with resume=auto enter it again.

    node: of the hosts of the run; those after the first have a directory of their own beside the first one's. Until the
    context ends no other run can use it. A new directory is removed where the body raises UserError; where the body is
    interrupted, the summary says so.
    """
    was_there = config.run_dir is not None and Path(config.run_dir).expanduser().exists()
    run_dir = _create(config, framework, f"-node{node}" if node else "")
    _check_new(run_dir, config)  # before the lock leaves its file in somebody's directory
    with _locked(run_dir), interruptible():
        _check_new(run_dir, config)  # another run may have entered meanwhile
        try:
            if not (run_dir / "config.yaml").exists():
                compose.save_config(replace(config, run_dir=str(run_dir)), run_dir / "config.yaml")
            yield run_dir
        except Interrupted as interruption:
            write_aborted_summary(run_dir, config, framework, "interrupted", str(interruption))
            raise
        except UserError:
            if not was_there and {path.name for path in run_dir.iterdir()} <= {"config.yaml", LOCK}:
                shutil.rmtree(run_dir)
                if run_dir.parent == RUNS and not any(RUNS.iterdir()):
                    RUNS.rmdir()
            raise


def default_run_dir(config: Config, framework: str, time: str) -> Path:
    """Where a run writes that has no `run_dir`: one of a sweep beside the others, named after what is swept."""
    name = config.run_name or f"{framework}-{config.strategy.kind}"
    if not is_sweep_job():
        return RUNS / f"{time}-{name}"
    values = re.sub("(^|,)strategy=[^,]*", "", describe_job()).lstrip(",")
    return get_sweep_directory() / "-".join(filter(None, (name, values)))


def profile_path(run_dir: Path, rank: int) -> Path:
    """Where a rank writes its trace with `train.profile=true`."""
    return run_dir / "profile" / f"rank-{rank}.json.gz"


def chief_run_dir(run_dir: Path, node: int) -> Path:
    """The directory of the run's chief, as this host sees it."""
    return run_dir.with_name(run_dir.name.removesuffix(f"-node{node}")) if node else run_dir


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
    again = config.resume == "auto" or restarts() > 0
    if found and not (again and "config.yaml" in found):
        raise UserError(
            f"run_dir={run_dir}: is not empty; a run has a directory of its own, choose another"
            + (", or resume this run with resume=auto" if "config.yaml" in found else "")
        )


def _create(config: Config, framework: str, suffix: str) -> Path:
    try:
        if config.run_dir is not None:
            run_dir = Path(config.run_dir + suffix).expanduser()
            run_dir.mkdir(parents=True, exist_ok=True)
            probe = run_dir / ".writable"
            probe.touch()
            probe.unlink()
            return run_dir
        place = f"{default_run_dir(config, framework, f'{datetime.now():%Y%m%d-%H%M%S}')}{suffix}"
        for attempt in range(1, 1000):
            run_dir = Path(place if attempt == 1 else f"{place}-{attempt}")
            try:
                run_dir.mkdir(parents=True)
                return run_dir
            except FileExistsError:
                continue
    except OSError as error:
        raise UserError(f"run_dir={error.filename}: cannot be written ({error.strerror}); give run_dir=PATH") from error
    raise UserError(f"run_dir={place}: a thousand runs have this name already; give run_dir=PATH")
