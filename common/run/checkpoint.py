"""The framework-neutral checkpoint: parameters and optimizer slots under Hugging Face names, and where the run was.

A checkpoint is a directory in Hugging Face format, checkpoints/step-00000100, with optimizer.safetensors and state.json
besides. It appears complete or not at all, and is opened only if everything in it matches its checksum.
"""

import json
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from common.config.compose import collect_values
from common.config.keys import CURVE
from common.config.legacy import upgrade_values
from common.config.schema import Config
from common.data import batch_plan
from common.data.atomic_directory import compute_fingerprint, read_manifest, verify_directory
from common.errors import UserError
from common.models.initial_weights import WEIGHTS
from common.training.state import Position, State

log = logging.getLogger("lockstep")

FORMAT = 2  # of 1, `settings` has the config keys of the first edition
DIRECTORY, OPTIMIZER, STATE = "checkpoints", "optimizer.safetensors", "state.json"
DATA, PLAN = "data", "plan_version"  # in the settings, besides config keys


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its directory and what state.json says."""

    directory: Path
    state: dict[str, Any] = field(repr=False)

    @property
    def position(self) -> Position:
        """A copy of the position that it was saved at."""
        return Position(**self.state["position"])

    @property
    def settings(self) -> dict[str, Any]:
        """What `settings` returned when it was saved. The first batch plan, version 1, was not recorded."""
        return {PLAN: 1, **upgrade_values(self.state["settings"])}

    @property
    def fingerprint(self) -> str:
        """Of all that is in it."""
        return compute_fingerprint(self.state)

    def load(self) -> State:
        """The arrays."""
        return State(load_file(self.directory / WEIGHTS), load_file(self.directory / OPTIMIZER))


def settings(config: Config, data_fingerprint: str) -> dict[str, Any]:
    """What must be the same for a resumed run to draw the uninterrupted one's curve, by config key.

    Besides the keys: the fingerprint of the data, and the version of the batch plan.
    """
    return {**upgrade_values(collect_values(config, CURVE)), DATA: data_fingerprint, PLAN: batch_plan.PLAN_VERSION}


def open_checkpoint(directory: Path) -> Checkpoint:
    """Open and verify one. Raises UserError where it is not complete."""
    state, problem = verify_directory(directory, STATE)
    if state is None:
        raise UserError(f"{directory}: {problem or 'no such checkpoint'}; choose another checkpoint")
    if not 1 <= state["format"] <= FORMAT:
        raise UserError(f"{directory}: has format {state['format']}; this version of Lockstep reads 1 to {FORMAT}")
    return Checkpoint(directory, state)


def reopen_checkpoint(directory: Path) -> Checkpoint:
    """Open one that has been verified."""
    return Checkpoint(directory, read_manifest(directory, STATE))


def newest(run_dir: Path) -> Checkpoint | None:
    """The newest complete checkpoint of a run. A damaged one is named in the log and the one before it taken."""
    for directory in reversed(saved(run_dir)):
        try:
            return open_checkpoint(directory)
        except UserError as error:
            log.warning("%s", error)
    return None


def best(run_dir: Path) -> Checkpoint | None:
    """The checkpoint with the lowest validation loss. Raises UserError where it is not complete."""
    directory = lowest_loss(saved(run_dir))
    return open_checkpoint(directory) if directory else None


def saved(run_dir: Path) -> list[Path]:
    """Directories of checkpoints by step, damaged ones too."""
    found = [path for path in (run_dir / DIRECTORY).glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(found, key=step_of)


def step_of(directory: Path) -> int:
    """The step that a checkpoint was saved at, by its directory's name."""
    return int(directory.name.removeprefix("step-"))


def lowest_loss(directories: list[Path]) -> Path | None:
    """The one of these checkpoints with the lowest validation loss; None where none was evaluated."""
    losses = {}
    for path in directories:
        with suppress(OSError, ValueError, KeyError, TypeError):
            losses[path] = float(json.loads((path / STATE).read_text())["position"]["validation"]["loss"])
    return min(losses, key=lambda path: losses[path], default=None)
