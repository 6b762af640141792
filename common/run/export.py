"""Export of the weights of a run as a model directory in Hugging Face format.

A text model loads with from_pretrained of transformers and from_preset of KerasHub, whichever side trained it.
"""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from common.config.schema import AVERAGE
from common.errors import UserError, describe_error
from common.models.initial_weights import WEIGHTS
from common.run.checkpoint import (
    CHECKPOINTS_DIRECTORY,
    Checkpoint,
    copy_checkpoint,
    find_best_checkpoint,
    find_newest_checkpoint,
)
from common.run.checkpoint_state import OPTIMIZER_FILE, STATE_FILE


def export_model(run_dir: Path, out: Path, use_best: bool, use_average: bool) -> Checkpoint:
    """Copy the model of the newest checkpoint, or of the one with the best validation score, to the directory `out`.

    Args:
        run_dir: the run directory.
        out: the directory to create.
        use_best: whether to take the checkpoint with the best validation score.
        use_average: whether to take the average of the weights, of ema.* or swa.*, in place of the weights.

    Returns:
        The checkpoint.

    Raises:
        UserError: the run has no such checkpoint or average, or the output cannot be written.
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
    averages = _load_averages(checkpoint) if use_average else {}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists and is not an empty directory; choose another path")
    try:
        copy_checkpoint(checkpoint, out, left_out=(OPTIMIZER_FILE, STATE_FILE))
        if averages:
            save_file({**load_file(out / WEIGHTS), **averages}, out / WEIGHTS, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise UserError(f"{out}: cannot be written ({describe_error(error)}); choose another path") from error
    return checkpoint


def _load_averages(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return the averages of the weights by the names of the parameters. Raise UserError if there are none."""
    prefix = f"{AVERAGE}."
    slots = checkpoint.load().slots
    averages = {name.removeprefix(prefix): array for name, array in slots.items() if name.startswith(prefix)}
    if not averages:
        raise UserError(
            f"{checkpoint.directory}: has no average of the weights; train with ema.decay or swa.start_step"
        )
    return averages
