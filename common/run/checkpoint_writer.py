"""The writer of checkpoints: an observer that saves in the background, and keeps the newest and the best."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import save_file

from common.data.atomic_directory import MANIFEST, compute_fingerprint, publish, verify_directory, write_manifest
from common.errors import build_write_error
from common.models.initial_weights import WEIGHTS
from common.run.checkpoint import DIRECTORY, FORMAT, OPTIMIZER, STATE, lowest_loss, saved, settings
from common.run.context import RunContext
from common.training.observer import Row
from common.training.state import Position, State


class CheckpointWriter:
    """Saves a run's checkpoints, writing each in the background from a copy."""

    def __init__(self, context: RunContext) -> None:
        config, inputs = context.config, context.inputs
        self.directory, self.keep = context.run_dir / DIRECTORY, config.train.keep_checkpoints
        self.initial, self.settings = inputs.initial, settings(config, inputs.cache.fingerprint)
        self.directory.mkdir(exist_ok=True)
        for abandoned in self.directory.glob("*.partial"):
            shutil.rmtree(abandoned)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def steps(self, rows: list[Row], traffic: list[Row], speed: float) -> None:
        """Nothing to do."""

    def evaluation(self, row: Row) -> None:
        """Nothing to do: the position has it."""

    def save(self, state: State, position: Position) -> None:
        """Save a checkpoint. Raises UserError where the one before could not be written."""
        self.finish()
        copy = State(*({name: each.copy() for name, each in part.items()} for part in (state.weights, state.slots)))
        self._writing = self._thread.submit(self._write, copy, Position(**asdict(position)))

    def finish(self) -> None:
        """Wait until the last one is on the disk. Raises UserError where it could not be written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """End the thread; what it is writing is finished."""
        self._thread.shutdown()

    def _write(self, state: State, position: Position) -> None:
        directory = self.directory / f"step-{position.step:08}"
        extra = {
            "format": FORMAT,
            "position": asdict(position),
            "config_fingerprint": compute_fingerprint(self.settings),
            "settings": self.settings,
        }
        found, _ = verify_directory(directory, STATE)
        if found is not None:  # saved when a signal came, and evaluated now
            write_manifest(directory, {**found, **extra}, STATE)
        else:
            _remove(directory)
            partial = directory.with_suffix(".partial")
            try:
                shutil.copytree(self.initial.directory, partial, ignore=shutil.ignore_patterns(WEIGHTS, MANIFEST))
                save_file(state.weights, partial / WEIGHTS, metadata={"format": "pt"})
                save_file(state.slots, partial / OPTIMIZER)
                publish(partial, directory, extra, STATE)
            except (OSError, SafetensorError) as error:
                raise build_write_error(directory, error) from error
            finally:
                shutil.rmtree(partial, ignore_errors=True)  # all the more on a full disk
        self._prune()

    def _prune(self) -> None:
        """Remove all but the newest `keep` and the best by validation loss."""
        directories = saved(self.directory.parent)
        best = lowest_loss(directories)
        for path in directories[: -self.keep]:
            if path != best:
                _remove(path)


def _remove(directory: Path) -> None:
    """Remove a checkpoint; it is renamed first, so that nobody finds a part of it."""
    if directory.exists():
        gone = directory.rename(directory.with_suffix(".removed.partial"))
        shutil.rmtree(gone)
