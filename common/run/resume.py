"""Where a run starts: at its newest complete checkpoint, at another run's, or from the initial weights."""

import shutil
from pathlib import Path

from common.config.keys import CURVE
from common.config.models import CustomModelSettings
from common.config.schema import Config, collect_keys
from common.data.cache import Cache
from common.errors import UserError
from common.models.initial_weights import WEIGHTS
from common.run.checkpoint import DATA, DIRECTORY, PLAN, STATE, Checkpoint, newest, open_checkpoint, settings
from common.run.rows import ROWS, keep_rows

AUTO = "auto"


def find_checkpoint(config: Config, run_dir: Path | None) -> Checkpoint | None:
    """The checkpoint that a run starts from; None for the initial weights. Raises UserError.

    run_dir: of the run's chief.
    """
    found = newest(run_dir) if run_dir is not None else None
    if found is not None or config.resume is None or config.resume == AUTO:
        return found
    path = Path(config.resume).expanduser()
    if (path / STATE).exists():
        return open_checkpoint(path)
    if not path.is_dir():
        raise UserError(f"resume={path}: no such directory; give a run's, a checkpoint's, or auto")
    found = newest(path)
    if found is None:
        raise UserError(f"resume={path}: has no complete checkpoint; give a run or a checkpoint that has")
    return found


def check_resume(config: Config, cache: Cache, checkpoint: Checkpoint) -> None:
    """Raise UserError where a run with this config and data would not continue the checkpoint's curve."""
    wanted, saved, table = settings(config, cache.fingerprint), checkpoint.settings, collect_keys()
    if saved[PLAN] != wanted[PLAN]:
        raise UserError(
            f"resume={config.resume}: {checkpoint.directory} was trained in the order of version {saved[PLAN]} of the "
            f"batch plan, and this is version {wanted[PLAN]}; finish that run with the Lockstep that started it, or "
            f"start a new one from its weights with {_from_weights(config, checkpoint)}"
        )
    if not config.data.allow_change and saved[DATA] != wanted[DATA]:
        raise UserError(
            f"data={config.data.kind}: is not what {checkpoint.directory} was trained on (fingerprint "
            f"{wanted[DATA]}, not {saved[DATA]}); give that data, or data.allow_change=true to continue with this"
        )
    keys = [key for key in {**saved, **wanted} if key != DATA and (key not in table or table[key].scope is CURVE)]
    if differing := [key for key in keys if saved.get(key) != wanted.get(key)]:
        listed = ", ".join(f"{key} ({wanted.get(key)}, not {saved.get(key)})" for key in differing)
        raise UserError(
            f"resume={config.resume}: {checkpoint.directory} was trained with other values of {listed}; give the same, "
            f"or start from its weights with {_from_weights(config, checkpoint)}"
        )
    if checkpoint.position.plan_position > config.train.steps:
        raise UserError(
            f"train.steps={config.train.steps}: {checkpoint.directory} is past it, "
            f"at {checkpoint.position.plan_position}; raise it"
        )


def _from_weights(config: Config, checkpoint: Checkpoint) -> str:
    """What starts a run from the weights of a checkpoint."""
    if isinstance(config.model, CustomModelSettings):
        return f"model.checkpoint={checkpoint.directory / WEIGHTS}"
    return f"model=pretrained model.checkpoint={checkpoint.directory}"


def adopt(checkpoint: Checkpoint, run_dir: Path) -> Checkpoint:
    """Copy a checkpoint, and the rows that led to it, into a new run's directory. Returns the copy, or its own one."""
    target = run_dir / DIRECTORY / checkpoint.directory.name
    if checkpoint.directory.absolute() == target.absolute():
        return checkpoint
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a command that was killed
    shutil.copytree(checkpoint.directory, partial)
    for name in ROWS:
        source = checkpoint.directory.parents[1] / name
        if checkpoint.directory.parent.name == DIRECTORY and source.exists():
            shutil.copyfile(source, run_dir / name)
    partial.rename(target)
    keep_rows(run_dir, checkpoint.position)
    return Checkpoint(target, checkpoint.state)
