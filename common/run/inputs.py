"""The prepared inputs of a run on one host, and prepared.json, through which the command passes them to its processes.

The user's command starts the training processes. The command verifies the inputs once. The processes open the inputs
without verifying them again, so the start-up time does not grow with the corpus.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

from common.config.schema import Config
from common.data.batch_plan import PLAN_VERSION
from common.data.cache import Cache, reopen_transformed_cache
from common.models.initial_weights import InitialCheckpoint, reopen_initial_checkpoint
from common.models.label_checks import limit_labels
from common.models.task_outputs import OutputLayout
from common.run.checkpoint import Checkpoint, open_unverified_checkpoint
from common.run.files import replace_text
from common.training.state import Position

PREPARED = "prepared.json"

Fingerprints = dict[str, str | None]


@dataclass(frozen=True)
class PreparedInputs:
    """The data, the initial weights and the checkpoint that a run starts from.

    Attributes:
        cache: the training and validation examples.
        initial: the initial weights, in a directory in Hugging Face format.
        checkpoint: the checkpoint to resume from; None if training starts from the initial weights.
    """

    cache: Cache
    initial: InitialCheckpoint
    checkpoint: Checkpoint | None

    @property
    def start(self) -> Position:
        """Return the position after which training starts."""
        return self.checkpoint.position if self.checkpoint else Position()

    @property
    def output_layouts(self) -> list[OutputLayout]:
        """Return the layouts of the model's outputs, if the task has several outputs or is contrastive; else none."""
        return [OutputLayout(**layout) for layout in self.initial.hf_config.get("output_layouts") or ()]

    @property
    def fingerprints(self) -> Fingerprints:
        """Return the fingerprints that must be equal on every host."""
        return {
            "batch plan": f"version {PLAN_VERSION}",
            "data": self.cache.fingerprint,
            "initial weights": self.initial.fingerprint,
            "checkpoint": self.checkpoint.fingerprint if self.checkpoint else None,
        }


class InputPaths(TypedDict):
    """The contents of prepared.json: the directories of the inputs, and their fingerprints."""

    cache: str
    initial: str
    checkpoint: str | None
    fingerprints: Fingerprints


def save_inputs(inputs: PreparedInputs, run_dir: Path) -> None:
    """Write the directories of the inputs and their fingerprints to prepared.json."""
    paths: InputPaths = {
        "cache": str(inputs.cache.directory.resolve()),
        "initial": str(inputs.initial.directory.resolve()),
        "checkpoint": str(inputs.checkpoint.directory.resolve()) if inputs.checkpoint else None,
        "fingerprints": inputs.fingerprints,
    }
    replace_text(run_dir / PREPARED, json.dumps(paths, indent=1) + "\n")


def open_inputs(config: Config, run_dir: Path) -> PreparedInputs:
    """Open the inputs that the command prepared, without verifying their contents. Each training process calls it."""
    paths = _read_paths(run_dir)
    initial = reopen_initial_checkpoint(Path(paths["initial"]))
    cache = reopen_transformed_cache(config, Path(paths["cache"]))
    cache = limit_labels(config, cache, initial.hf_config.get("output_classes"))
    inputs = PreparedInputs(cache, initial, open_prepared_checkpoint(run_dir))
    # The checkpoint is left out: its fingerprint changes if the run evaluates it after it was saved.
    opened, prepared = (
        {**fingerprints, "checkpoint": None} for fingerprints in (inputs.fingerprints, paths["fingerprints"])
    )
    assert opened == prepared, "the prepared inputs have changed"
    return inputs


def open_prepared_checkpoint(run_dir: Path) -> Checkpoint | None:
    """Return the prepared checkpoint; None if none was prepared, or if it was removed while the run continued."""
    path = _read_paths(run_dir)["checkpoint"]
    return open_unverified_checkpoint(Path(path)) if path and Path(path).exists() else None


def _read_paths(run_dir: Path) -> InputPaths:
    return cast(InputPaths, json.loads((run_dir / PREPARED).read_text()))
