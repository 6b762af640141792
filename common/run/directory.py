"""The run directory: a run creates it, or enters it again to resume, and locks it while it trains."""

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
from common.config.saved_config import CONFIG
from common.config.schema import Config
from common.errors import Interrupted, UserError, report_write_errors
from common.run.inputs import PREPARED
from common.run.summary import count_restarts, write_aborted_summary
from common.training.stop import interrupt_on_signals

RUNS_DIRECTORY = Path("runs")
LOCK_FILE, LOCK_SECONDS = ".lock", 5.0  # how long to wait for the lock: the processes of a killed run may still end


@contextmanager
def open_run_dir(config: Config, framework: str, host_index: int = 0) -> Iterator[Path]:
    """Create the directory of a run and write its config, or enter the directory again to resume or restart the run.

    No other run can use the directory until the context ends. If the body raises UserError, a new directory is removed;
    if the body is interrupted, the summary records the interruption.

    Args:
        config: the resolved config.
        framework: "torch" or "tf".
        host_index: the index of this host. The directory of host 1 has the first host's name and the suffix -node1.
    """
    existed = config.run_dir is not None and Path(config.run_dir).expanduser().exists()
    run_dir = _create_run_dir(config, framework, f"-node{host_index}" if host_index else "")
    _check_may_use(run_dir, config)  # checked here, too, so that no lock file is left in somebody's other directory
    with _lock(run_dir), interrupt_on_signals():
        _check_may_use(run_dir, config)  # another run may have entered meanwhile
        try:
            if not (run_dir / CONFIG).exists():
                with report_write_errors(run_dir):
                    compose.save_config(replace(config, run_dir=str(run_dir)), run_dir / CONFIG)
            yield run_dir
        except Interrupted as interruption:
            write_aborted_summary(run_dir, config, framework, "interrupted", str(interruption))
            raise
        except UserError:
            if not existed and not (run_dir / PREPARED).exists():
                shutil.rmtree(run_dir)
                if run_dir.parent == RUNS_DIRECTORY and not any(RUNS_DIRECTORY.iterdir()):
                    RUNS_DIRECTORY.rmdir()
            raise


def choose_run_dir(config: Config, framework: str, time: str) -> Path:
    """Return the directory for a run without `run_dir`. A job of a sweep is named after its overrides.

    time: the start of the run, as it appears in the name of the directory.
    """
    name = config.run_name or f"{framework}-{config.strategy.kind}"
    if not is_sweep_job():
        return RUNS_DIRECTORY / f"{time}-{name}"
    # The name has the strategy already.
    values = re.sub("(^|,)strategy=[^,]*", "", describe_job()).lstrip(",")
    return get_sweep_directory() / "-".join(filter(None, (name, values)))


def make_profile_path(run_dir: Path, rank: int) -> Path:
    """Return the path of the trace that a rank writes with `train.profile=true`."""
    return run_dir / "profile" / f"rank-{rank}.json.gz"


def find_chief_run_dir(run_dir: Path, host_index: int) -> Path:
    """Return the run directory of the chief, as this host sees it. It exists here if the storage is shared."""
    return run_dir.with_name(run_dir.name.removesuffix(f"-node{host_index}")) if host_index else run_dir


@contextmanager
def _lock(run_dir: Path) -> Iterator[None]:
    lock = FileLock(run_dir / LOCK_FILE)
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise UserError(
            f"run_dir={run_dir}: in use by another run; choose another directory, or end that run first"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _check_may_use(run_dir: Path, config: Config) -> None:
    """Raise UserError if the directory has files, unless they belong to the run that is resumed or restarted."""
    names = {path.name for path in run_dir.iterdir()} - {LOCK_FILE}
    may_enter = config.resume == "auto" or count_restarts() > 0
    if names and not (may_enter and CONFIG in names):
        raise UserError(
            f"run_dir={run_dir}: not empty; choose a new directory"
            + (", or resume this run with resume=auto" if CONFIG in names else "")
        )


def _create_run_dir(config: Config, framework: str, suffix: str) -> Path:
    """Create the run directory, by default a new one in runs/. Raise UserError if it cannot be written."""
    try:
        if config.run_dir is not None:
            run_dir = Path(config.run_dir + suffix).expanduser()
            run_dir.mkdir(parents=True, exist_ok=True)
            probe = run_dir / ".writable"
            probe.touch()
            probe.unlink()
            return run_dir
        name = f"{choose_run_dir(config, framework, f'{datetime.now():%Y%m%d-%H%M%S}')}{suffix}"
        for attempt in range(1, 1000):
            run_dir = Path(name if attempt == 1 else f"{name}-{attempt}")
            try:
                run_dir.mkdir(parents=True)
                return run_dir
            except FileExistsError:
                continue
    except OSError as error:
        raise UserError(f"run_dir={error.filename}: cannot be written ({error.strerror}); pass run_dir=PATH") from error
    raise UserError(f"run_dir={name}: a thousand runs have this name already; pass run_dir=PATH")
