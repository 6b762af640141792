"""Choice of the checkpoint that a run starts from: its own newest, a checkpoint of another run, or none.

Without a checkpoint, a run starts from the initial weights.
"""

import shutil
from pathlib import Path

from common.config.schema import Config
from common.errors import UserError, report_write_errors
from common.records.bundle import is_bundle
from common.run.checkpoint import (
    CHECKPOINTS_DIRECTORY,
    Checkpoint,
    copy_checkpoint,
    find_newest_checkpoint,
    open_checkpoint,
)
from common.run.checkpoint_state import STATE_FILE
from common.run.files import ROW_FILES, drop_rows_after, read_rows_until

AUTO = "auto"


def find_checkpoint(config: Config, run_dir: Path | None) -> Checkpoint | None:
    """Return the checkpoint from which a run starts; None for the initial weights. Raise UserError.

    Args:
        config: the config of the run.
        run_dir: the run directory of the chief; None if the run has none yet.
    """
    checkpoint = find_newest_checkpoint(run_dir) if run_dir is not None else None
    if checkpoint is not None or config.resume is None or config.resume == AUTO:
        return checkpoint
    path = Path(config.resume).expanduser()
    if (path / STATE_FILE).exists():
        return open_checkpoint(path)
    if is_bundle(path):
        raise UserError(f"resume={path}: a bundle; unpack it first: python -m common.export unpack={path} DIRECTORY")
    if not path.is_dir():
        raise UserError(f"resume={path}: no such directory; pass a run directory, a checkpoint directory, or auto")
    checkpoint = find_newest_checkpoint(path)
    if checkpoint is None:
        raise UserError(f"resume={path}: has no complete checkpoint; pass another run directory or checkpoint")
    return checkpoint


def adopt_checkpoint(checkpoint: Checkpoint, run_dir: Path) -> Checkpoint:
    """Copy a checkpoint and the rows of the steps before it into the directory of a run, unless it is there already.

    Returns:
        The copy, or the checkpoint itself if it is in this run directory already.

    Raises:
        UserError: the copy cannot be written, or a row of the steps before the checkpoint is damaged.
    """
    target = run_dir / CHECKPOINTS_DIRECTORY / checkpoint.directory.name
    if checkpoint.directory.absolute() == target.absolute():
        read_rows_until(run_dir, checkpoint.position)  # refuses damaged rows before training starts
        return checkpoint
    partial = target.with_suffix(".partial")
    with report_write_errors(target):
        try:
            shutil.rmtree(partial, ignore_errors=True)  # a killed command may have left it
            copy_checkpoint(checkpoint, partial)
            _adopt_rows(checkpoint, run_dir)
            shutil.rmtree(target, ignore_errors=True)  # a damaged one; otherwise the run would resume from it
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # frees space if the disk is full
    return Checkpoint(target, checkpoint.state)


def _adopt_rows(checkpoint: Checkpoint, run_dir: Path) -> None:
    """Copy the rows of the steps before a checkpoint. Raise UserError if one of them is damaged."""
    for name in ROW_FILES:
        source = checkpoint.directory.parents[1] / name  # rows of the run that saved the checkpoint
        if checkpoint.directory.parent.name == CHECKPOINTS_DIRECTORY and source.exists():
            if source.is_symlink() or not source.is_file():
                raise UserError(
                    f"resume={checkpoint.directory}: {source} is not a regular file; replace it by its content"
                )
            shutil.copyfile(source, run_dir / name)
    drop_rows_after(run_dir, checkpoint.position)
