"""Export of the weights of a run as a model directory in Hugging Face format.

A text model loads with from_pretrained of transformers and from_preset of KerasHub, whichever side trained it.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Copy the model of a checkpoint of a run to the directory `out`.

    Args:
        run_dir: the run directory.
        out: the directory to create; an empty directory may exist.
        use_best: whether to take the checkpoint with the best validation score; otherwise the newest.
        use_average: whether to export the averaged weights (ema.* or swa.*). Before the start of the average, the
            weights themselves are exported. Statistics of BatchNorm are not averaged.

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
            + ("; export without --best, or pass another run directory" if use_best else "; pass another run directory")
        )
    averages = _load_averages(checkpoint) if use_average else {}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists and is not an empty directory; choose another path")
    try:
        with _remove_after_failure(out):
            # No run resumes from an exported model, so it needs neither the optimizer nor the state of the run.
            copy_checkpoint(checkpoint, out, left_out=(OPTIMIZER_FILE, STATE_FILE))
            if averages:
                save_file({**load_file(out / WEIGHTS), **averages}, out / WEIGHTS, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise UserError(f"{out}: cannot be written ({describe_error(error)}); choose another path") from error
    return checkpoint


@contextmanager
def _remove_after_failure(directory: Path) -> Iterator[None]:
    """Remove what the body has written to a directory if it fails. The directory is missing or empty before."""
    existed = directory.exists()
    try:
        yield
    except BaseException:
        shutil.rmtree(directory.resolve(), ignore_errors=True)
        if existed:
            directory.resolve().mkdir(exist_ok=True)
        raise


def _load_averages(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return the averages of the weights by the names of the parameters. Raise UserError if there are none."""
    prefix = f"{AVERAGE}."
    slots = checkpoint.load().slots
    averages = {name.removeprefix(prefix): array for name, array in slots.items() if name.startswith(prefix)}
    if not averages:
        raise UserError(
            f"{checkpoint.directory}: has no average of the weights; train with ema.decay or swa.start_step, or export "
            "without --average"
        )
    return averages
