"""A run's weights as a model directory in Hugging Face format.

Text models load with transformers' and KerasHub's from_pretrained and from_preset, whichever side trained them.
"""

import shutil
from pathlib import Path

from common.errors import UserError
from common.run.checkpoint import DIRECTORY, OPTIMIZER, STATE, Checkpoint, best, newest


def export(run_dir: Path, out: Path, of_best: bool) -> Checkpoint:
    """Copy the model of the newest checkpoint, or of the best by validation loss. Raises UserError."""
    if not (run_dir / DIRECTORY).is_dir():
        raise UserError(f"{run_dir}: has no {DIRECTORY}/; give the directory of a run")
    checkpoint = best(run_dir) if of_best else newest(run_dir)
    if checkpoint is None:
        raise UserError(
            f"{run_dir}: has no complete checkpoint"
            + (" that was evaluated" if of_best else "")
            + "; give a run that has"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists and is not an empty directory; choose another")
    try:
        shutil.copytree(checkpoint.directory, out, ignore=shutil.ignore_patterns(OPTIMIZER, STATE), dirs_exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); choose another") from error
    return checkpoint
