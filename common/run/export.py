"""Export of the weights of a run as a model directory in Hugging Face format.

A text model loads with from_pretrained of transformers and from_preset of KerasHub, whichever side trained it.
"""

from pathlib import Path

from common.errors import UserError, describe_error
from common.run.checkpoint import (
    CHECKPOINTS_DIRECTORY,
    Checkpoint,
    copy_checkpoint,
    find_best_checkpoint,
    find_newest_checkpoint,
)
from common.run.checkpoint_state import OPTIMIZER_FILE, STATE_FILE


def export_model(run_dir: Path, out: Path, use_best: bool) -> Checkpoint:
    """Copy the model of the newest checkpoint, or of the one with the lowest validation loss, to the directory `out`.

    Returns the checkpoint. Raises UserError if the run has no such checkpoint or the output cannot be written.

    use_best: whether to take the checkpoint with the lowest validation loss.
    """
    if not (run_dir / CHECKPOINTS_DIRECTORY).is_dir():
        raise UserError(f"{run_dir}: has no {CHECKPOINTS_DIRECTORY}/; pass a run directory")
    checkpoint = find_best_checkpoint(run_dir) if use_best else find_newest_checkpoint(run_dir)
    if checkpoint is None:
        raise UserError(
            f"{run_dir}: has no complete checkpoint"
            + (" that was evaluated" if use_best else "")
            + "; pass another run directory"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists and is not an empty directory; choose another path")
    try:
        copy_checkpoint(checkpoint, out, left_out=(OPTIMIZER_FILE, STATE_FILE))
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({describe_error(error)}); choose another path") from error
    return checkpoint
