"""Framework-neutral checkpoints: weights and optimizer slots under Hugging Face names, and the position of the run.

A checkpoint is a directory in Hugging Face format, such as checkpoints/step-00000100 in a run directory, with two more
files, optimizer.safetensors and state.json. The directory appears complete or not at all. Its files must match the
checksums in state.json. The curve settings in state.json are the values that decide the loss curve: a run that resumes
from the checkpoint must have the same.
"""

import logging
import math
import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from common.config.legacy import upgrade_values
from common.data.atomic_directory import compute_fingerprint, read_manifest, verify_directory
from common.errors import UserError
from common.models.initial_weights import WEIGHTS
from common.models.stored_tensors import StoredTensors
from common.run.checkpoint_state import OPTIMIZER_FILE, STATE_FILE, CheckpointState, check_state
from common.run.environment_history import EnvironmentStretch
from common.training.state import Position, Score, State

log = logging.getLogger("lockstep")

CHECKPOINTS_DIRECTORY = "checkpoints"
DATA, PLAN = "data", "plan_version"  # curve settings besides config keys: the data's fingerprint, the plan's version


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its directory and its state.json."""

    directory: Path
    state: CheckpointState = field(repr=False)

    @property
    def position(self) -> Position:
        """Return a copy of the position at which the checkpoint was saved."""
        return Position(**self.state["position"])

    @property
    def settings(self) -> dict[str, object]:
        """Return the curve settings of the run that saved the checkpoint, by today's names of the keys."""
        # Before version 2 of the batch plan the version was not saved.
        return {PLAN: 1, **upgrade_values(self.state["settings"])}

    @property
    def environments(self) -> list[EnvironmentStretch]:
        """Return the environments of the run until the checkpoint; empty if they were not recorded."""
        return self.state.get("environments", [])

    @property
    def stream_blocks(self) -> dict[str, str]:
        """Return the checksums of the blocks of `data.stream` that the run has read; empty without a stream."""
        return self.state.get("stream_blocks", {})

    @property
    def fingerprint(self) -> str:
        """Return a fingerprint of the full contents."""
        return compute_fingerprint(cast("dict[str, object]", self.state))

    def load(self) -> State:
        """Return the weights and the optimizer slots, which are read from the files when they are used."""
        return State(StoredTensors(self.directory / WEIGHTS), StoredTensors(self.directory / OPTIMIZER_FILE))


def open_checkpoint(directory: Path) -> Checkpoint:
    """Open and verify a checkpoint. Raise UserError if it is not complete."""
    state, problem = verify_directory(directory, STATE_FILE)
    if state is None:
        raise UserError(f"{directory}: {problem or 'no such checkpoint'}; choose another checkpoint")
    return _check_checkpoint(directory, state)


def copy_checkpoint(checkpoint: Checkpoint, target: Path, left_out: Collection[str] = ()) -> None:
    """Copy the files that state.json lists, and state.json, to a directory, except for the names in `left_out`.

    Raises:
        OSError: The files cannot be copied.
    """
    for name in (*checkpoint.state["checksums"], STATE_FILE):
        if name not in left_out:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint.directory / name, target / name, follow_symlinks=False)


def open_unverified_checkpoint(directory: Path) -> Checkpoint:
    """Open a checkpoint whose files have been verified before, without verifying them again. Raise UserError."""
    return _check_checkpoint(directory, read_manifest(directory, STATE_FILE))


def _check_checkpoint(directory: Path, state: Mapping[str, object]) -> Checkpoint:
    """Return a checkpoint with this state.json. Raise UserError if a value is not valid."""
    try:
        return Checkpoint(directory, check_state(state, parse_step(directory) if _has_step(directory) else None))
    except ValueError as error:
        raise UserError(f"{directory}: {error}; choose another checkpoint") from error


def find_newest_checkpoint(run_dir: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint of a run. A warning names each newer checkpoint that is damaged."""
    for directory in reversed(list_checkpoints(run_dir)):
        try:
            return open_checkpoint(directory)
        except UserError as error:
            log.warning("%s", error)
    return None


def find_best_checkpoint(run_dir: Path) -> Checkpoint | None:
    """Return the checkpoint with the best validation score. Raise UserError if it is not complete."""
    directory = select_best(list_checkpoints(run_dir))
    return open_checkpoint(directory) if directory else None


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Return the directories of all checkpoints of a run in the order of their steps, damaged ones included."""
    directories = (run_dir / CHECKPOINTS_DIRECTORY).glob("step-*")
    return sorted(filter(_has_step, directories), key=parse_step)


def _has_step(directory: Path) -> bool:
    """Check whether a directory has the name of a checkpoint in a run directory."""
    return re.fullmatch("step-[0-9]+", directory.name) is not None


def parse_step(directory: Path) -> int:
    """Return the step of a checkpoint from the name of its directory."""
    return int(directory.name.removeprefix("step-"))


def select_best(directories: list[Path]) -> Path | None:
    """Return the checkpoint with the best validation score; None if no checkpoint was evaluated.

    The score is the metric of train.early_stopping. If a resumed run follows another metric than before, only the
    checkpoints since then count.

    directories: the checkpoints of a run, in the order of their steps.
    """
    # The scores of the checkpoints by metric. The metric of the newest checkpoint is the last key.
    scores: dict[str, dict[Path, float]] = {}
    for path in directories:
        with suppress(UserError):  # a damaged checkpoint
            position = open_unverified_checkpoint(path).position
            if position.validation is not None:
                score = position.score or Score(metric="loss", value=position.validation["loss"])
                scores[score["metric"]] = {**scores.pop(score["metric"], {}), path: score["value"]}
    newest = [*scores.values()][-1] if scores else {}
    comparable = {path: value for path, value in newest.items() if not math.isnan(value)}
    return min(comparable, key=lambda path: comparable[path], default=None)
