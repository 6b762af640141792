"""Framework-neutral checkpoints: weights and optimizer slots under Hugging Face names, and the position of the run.

A checkpoint is a directory in Hugging Face format, such as checkpoints/step-00000100 in a run directory, with two more
files, optimizer.safetensors and state.json. The directory appears complete or not at all. It is opened only if its
files match the checksums in state.json. The curve settings in state.json are the values that decide the loss curve: a
run that resumes from the checkpoint must have the same.
"""

import json
import logging
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, cast

from safetensors.numpy import load_file

from common.config.legacy import upgrade_values
from common.data.atomic_directory import compute_fingerprint, read_manifest, verify_directory
from common.errors import UserError
from common.models.initial_weights import WEIGHTS
from common.training.state import Position, PositionValues, State

log = logging.getLogger("lockstep")

FORMAT = 2  # of state.json; in format 1 the settings have the names that config keys had in the first edition
CHECKPOINTS_DIRECTORY, OPTIMIZER_FILE, STATE_FILE = "checkpoints", "optimizer.safetensors", "state.json"
DATA, PLAN = "data", "plan_version"  # curve settings besides config keys: the data's fingerprint, the plan's version


class CheckpointState(TypedDict):
    """The contents of state.json that Lockstep reads. The file also has a seal, the checksum of state.json itself."""

    format: int
    position: PositionValues
    config_fingerprint: str
    settings: dict[str, object]  # curve settings by the full name of the config key
    checksums: dict[str, str]  # file name -> checksum


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
    def fingerprint(self) -> str:
        """Return a fingerprint of the full contents."""
        return compute_fingerprint(cast("dict[str, object]", self.state))

    def load(self) -> State:
        """Return the weights and the optimizer slots."""
        return State(load_file(self.directory / WEIGHTS), load_file(self.directory / OPTIMIZER_FILE))


def open_checkpoint(directory: Path) -> Checkpoint:
    """Open and verify a checkpoint. Raises UserError if it is not complete."""
    state, problem = verify_directory(directory, STATE_FILE)
    if state is None:
        raise UserError(f"{directory}: {problem or 'no such checkpoint'}; choose another checkpoint")
    if not 1 <= state["format"] <= FORMAT:
        raise UserError(
            f"{directory}: has format {state['format']}, and this version of Lockstep reads 1 to {FORMAT}; "
            "update Lockstep, or choose another checkpoint"
        )
    return Checkpoint(directory, cast(CheckpointState, state))


def copy_checkpoint(checkpoint: Checkpoint, target: Path, left_out: Collection[str] = ()) -> None:
    """Copy the files that state.json lists, and state.json, to a directory. Other files of the checkpoint stay.

    Raises:
        OSError: The files cannot be copied.
    """
    for name in (*checkpoint.state["checksums"], STATE_FILE):
        if name not in left_out:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint.directory / name, target / name, follow_symlinks=False)


def open_unverified_checkpoint(directory: Path) -> Checkpoint:
    """Open a checkpoint that has been verified before, without verifying it again."""
    return Checkpoint(directory, cast(CheckpointState, read_manifest(directory, STATE_FILE)))


def find_newest_checkpoint(run_dir: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint of a run. A warning names each newer checkpoint that is damaged."""
    for directory in reversed(list_checkpoints(run_dir)):
        try:
            return open_checkpoint(directory)
        except UserError as error:
            log.warning("%s", error)
    return None


def find_best_checkpoint(run_dir: Path) -> Checkpoint | None:
    """Return the checkpoint with the lowest validation loss. Raises UserError if it is not complete."""
    directory = select_lowest_loss(list_checkpoints(run_dir))
    return open_checkpoint(directory) if directory else None


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Return the directories of all checkpoints of a run in the order of their steps, damaged ones included."""
    directories = (run_dir / CHECKPOINTS_DIRECTORY).glob("step-*")
    return sorted((path for path in directories if path.name.removeprefix("step-").isdigit()), key=parse_step)


def parse_step(directory: Path) -> int:
    """Return the step of a checkpoint from the name of its directory."""
    return int(directory.name.removeprefix("step-"))


def select_lowest_loss(directories: list[Path]) -> Path | None:
    """Return the checkpoint with the lowest validation loss; None if no checkpoint was evaluated."""
    losses = {}
    for path in directories:
        with suppress(OSError, ValueError, KeyError, TypeError):
            losses[path] = float(json.loads((path / STATE_FILE).read_text())["position"]["validation"]["loss"])
    return min(losses, key=lambda path: losses[path], default=None)
