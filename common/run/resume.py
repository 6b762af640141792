"""Where a run starts: at its newest whole checkpoint, at another run's, or afresh."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

from common.config import schema as configs
from common.config.schema import Bert, Config
from common.data.text.token_cache import Cache
from common.errors import UserError
from common.models.initial_weights import InitialCheckpoint
from common.models.pretrained import open_source
from common.prepare import prepare, resolve
from common.run.checkpoint import DIRECTORY, STATE, Checkpoint, newest, open_checkpoint, settings
from common.run.directory import ROWS, chief_run_dir, keep_rows

log = logging.getLogger("lockstep")

AUTO = "auto"


def make_ready(config: Config) -> None:
    """In the command that starts a run: its data, what `resume=` names, and its config as it is resolved.

    Raises UserError where something is missing or does not fit.
    """
    cache, _, checkpoint = find_start(config)
    resolve(config, cache)
    if checkpoint is not None:
        _go_on(config, cache, checkpoint)
    elif config.resume is not None:
        log.info("resume=%s: no checkpoint there; starting afresh", config.resume)
    assert config.run_dir is not None
    (Path(config.run_dir) / "summary.json").unlink(missing_ok=True)
    configs.save(config, Path(config.run_dir) / "config.yaml")


def _go_on(config: Config, cache: Cache, checkpoint: Checkpoint) -> None:
    _check(config, cache, checkpoint)
    log.info("going on from %s", checkpoint.directory)
    assert config.run_dir is not None
    if config.resume != AUTO and not config.cluster.node:
        _bring(checkpoint, Path(config.run_dir))


def find_start(config: Config) -> tuple[Cache, InitialCheckpoint, Checkpoint | None]:
    """In a process of a run: its data, its initial weights and the checkpoint that takes their place, if one does."""
    checkpoint = _starting_point(config)
    source = None
    if checkpoint is not None and config.data.allow_change and isinstance(config.model, Bert):
        source = open_source(checkpoint.directory, config)  # new data must not bring a new tokenizer
    cache, initial = prepare(config, source)
    return cache, replace(initial, checkpoint=checkpoint.fingerprint if checkpoint else None), checkpoint


def _starting_point(config: Config) -> Checkpoint | None:
    """The checkpoint that the processes of this run start from; None for the initial weights. Raises UserError."""
    found = newest(chief_run_dir(config)) if config.run_dir is not None else None
    if found is not None or config.resume in (None, AUTO):
        return found
    assert config.resume is not None
    path = Path(config.resume).expanduser()
    if (path / STATE).exists():
        return open_checkpoint(path)
    if not path.is_dir():
        raise UserError(f"resume={path}: no such directory; give a run's, a checkpoint's, or auto")
    found = newest(path)
    if found is None:
        raise UserError(f"resume={path}: has no whole checkpoint; give a run or a checkpoint that has")
    return found


def _check(config: Config, cache: Cache, checkpoint: Checkpoint) -> None:
    wanted, saved = settings(config, cache.fingerprint), checkpoint.state["settings"]
    if not config.data.allow_change and saved["data"] != wanted["data"]:
        raise UserError(
            f"data={config.data.name}: is not what {checkpoint.directory} was trained on (fingerprint "
            f"{wanted['data']}, not {saved['data']}); give that data, or data.allow_change=true to go on with this"
        )
    differing = [key for key in {**saved, **wanted} if saved.get(key) != wanted.get(key) and key != "data"]
    if differing:
        told = ", ".join(f"{key} ({wanted.get(key)}, not {saved.get(key)})" for key in differing)
        raise UserError(
            f"resume={config.resume}: {checkpoint.directory} was trained with other values of {told}; give the same, "
            "or start from its weights with model=pretrained model.checkpoint=..."
        )
    if checkpoint.position.plan_position > config.train.steps:
        raise UserError(
            f"train.steps={config.train.steps}: {checkpoint.directory} is past it, "
            f"at {checkpoint.position.plan_position}; raise it"
        )


def _bring(checkpoint: Checkpoint, run_dir: Path) -> None:
    """Copy a checkpoint, and the rows that led to it, into a new run's directory."""
    target = run_dir / DIRECTORY / checkpoint.directory.name
    partial = target.with_suffix(".partial")
    shutil.copytree(checkpoint.directory, partial)
    partial.rename(target)
    for name in ROWS:
        source = checkpoint.directory.parents[1] / name
        if checkpoint.directory.parent.name == DIRECTORY and source.exists():
            shutil.copyfile(source, run_dir / name)
    keep_rows(run_dir, checkpoint.position)
