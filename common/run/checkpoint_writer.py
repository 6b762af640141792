"""Writer of checkpoints: an observer that saves in the background, and keeps the newest checkpoints and the best."""

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from typing_extensions import override

from common.data.arrays.stream_split import StreamSplit
from common.data.atomic_directory import MANIFEST, compute_fingerprint, publish, verify_directory, write_manifest
from common.errors import build_write_error
from common.models.initial_weights import WEIGHTS
from common.recording.tensor_writer import write_tensors
from common.run.checkpoint import (
    CHECKPOINTS_DIRECTORY,
    list_checkpoints,
    select_best,
)
from common.run.checkpoint_state import FORMAT, OPTIMIZER_FILE, STATE_FILE
from common.run.context import RunContext
from common.run.curve_settings import collect_curve_settings
from common.run.environment_history import EnvironmentStretch
from common.training.observer import Observer
from common.training.state import Position, State


class CheckpointWriter(Observer):
    """Observer that saves the checkpoints of a run. It copies the state, and writes the copy in the background."""

    def __init__(self, context: RunContext, environments: Sequence[EnvironmentStretch] = ()) -> None:
        """Prepare to save the checkpoints of a run. environments: the history of the run's environments."""
        self.environments = list(environments)
        config, inputs = context.config, context.inputs
        self.directory, self.keep = context.run_dir / CHECKPOINTS_DIRECTORY, config.train.keep_checkpoints
        self.split = inputs.cache.train
        self.initial, self.settings = inputs.initial, collect_curve_settings(config, inputs.cache.fingerprint)
        self.directory.mkdir(exist_ok=True)
        for abandoned in self.directory.glob("*.partial"):
            shutil.rmtree(abandoned)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    @override
    def save(self, state: State, position: Position) -> None:
        """Start to save a checkpoint. Raise UserError if the previous checkpoint could not be written."""
        self.finish()
        copied_state = State(_copy_arrays(state.weights), _copy_arrays(state.slots))
        self._writing = self._thread.submit(self._write, copied_state, replace(position))

    def finish(self) -> None:
        """Wait until the last checkpoint is on the disk. Raise UserError if it could not be written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Finish the checkpoint that is being written, and end the thread."""
        self._thread.shutdown()

    def _write(self, state: State, position: Position) -> None:
        directory = self.directory / f"step-{position.step:08}"
        extra_fields = {
            "format": FORMAT,
            "position": position.to_values(),
            "config_fingerprint": compute_fingerprint(self.settings),
            "settings": self.settings,
            "environments": self.environments,
            **({"stream_blocks": self.split.read_checksums()} if isinstance(self.split, StreamSplit) else {}),
        }
        manifest, _ = verify_directory(directory, STATE_FILE)
        if manifest is not None:  # the run saved it after a signal, then resumed from it and evaluated its step
            write_manifest(directory, {**manifest, **extra_fields}, STATE_FILE)
        else:
            _remove(directory)
            partial = directory.with_suffix(".partial")
            try:
                shutil.copytree(self.initial.directory, partial, ignore=shutil.ignore_patterns(WEIGHTS, MANIFEST))
                write_tensors(partial / WEIGHTS, state.weights, {"format": "pt"})
                write_tensors(partial / OPTIMIZER_FILE, state.slots)
                publish(partial, directory, extra_fields, STATE_FILE)
            except (OSError, TypeError) as error:
                raise build_write_error(directory, error) from error
            finally:
                shutil.rmtree(partial, ignore_errors=True)  # frees space if the disk is full
        self._prune()

    def _prune(self) -> None:
        """Remove all checkpoints but the newest `keep` ones and the one with the best validation score."""
        directories = list_checkpoints(self.directory.parent)
        best = select_best(directories)
        for path in directories[: -self.keep]:
            if path != best:
                _remove(path)


def _copy_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copy the arrays that training may change. Memory-mapped ones were made for this checkpoint."""
    return {name: array if isinstance(array, np.memmap) else array.copy() for name, array in arrays.items()}


def _remove(directory: Path) -> None:
    """Rename a checkpoint, so that no reader finds a part of it, and remove it."""
    if directory.exists():
        shutil.rmtree(directory.rename(directory.with_suffix(".removed.partial")))
