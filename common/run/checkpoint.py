"""The framework-neutral checkpoint: parameters and optimizer slots under Hugging Face names, and where the run was.

A checkpoint is a directory in Hugging Face format, checkpoints/step-00000100, with optimizer.safetensors and state.json
besides. It is there whole or not at all, and opened only if everything in it matches its checksum.
"""

import json
import logging
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from common.config.schema import Config, flat
from common.data.atomic_directory import MANIFEST, fingerprint, publish, verified, write_manifest
from common.errors import UserError, cannot_be_written
from common.models.initial_weights import WEIGHTS, InitialCheckpoint

log = logging.getLogger("lockstep")

FORMAT = 1
DIRECTORY, OPTIMIZER, STATE = "checkpoints", "optimizer.safetensors", "state.json"
# The keys that decide the curve; places and how the work is spread do not.
SETTINGS = ("model.", "optimizer.", "schedule.", "train.global_batch_size", "train.max_length", "train.precision")
PLACES = ("model.checkpoint", "model.revision")  # a resumed run does not start from these


@dataclass(frozen=True)
class State:
    """What a strategy trains: parameters, and optimizer slots as `<slot>.<parameter>`, all in PyTorch's layout.

    Slots are `exp_avg` and `exp_avg_sq` of Adam and AdamW, and `momentum_buffer` of SGD, as PyTorch defines them.
    """

    parameters: dict[str, np.ndarray]
    slots: dict[str, np.ndarray]


@dataclass
class Position:
    """Where a run is. Training goes on after it.

    step: updates made. plan_position: global batches trained on, which asynchronous updates are parts of. seconds:
    since the first step began, as far as it was trained. validation: loss and accuracy at this step, where evaluated.
    best, waited: what early stopping has seen: the best value, and the evaluations since without a better one.
    """

    step: int = 0
    plan_position: int = 0
    examples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    validation: dict[str, float] | None = None
    best: float | None = None
    waited: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: its directory and what state.json says."""

    directory: Path
    state: dict[str, Any] = field(repr=False)

    @property
    def position(self) -> Position:
        """A copy of the position that it was saved at."""
        return Position(**self.state["position"])

    @property
    def fingerprint(self) -> str:
        """Of all that is in it."""
        return fingerprint(self.state)

    def load(self) -> State:
        """The arrays."""
        return State(load_file(self.directory / WEIGHTS), load_file(self.directory / OPTIMIZER))


def settings(config: Config, data_fingerprint: str) -> dict[str, Any]:
    """What must be the same for a resumed run to draw the uninterrupted one's curve, by config key."""
    keys = {
        key: value for key, value in flat(config).items() if key.startswith(SETTINGS) and not key.startswith(PLACES)
    }
    return {**keys, "train.seed": config.train.seed, "data": data_fingerprint}


def slot_names(config: Config) -> tuple[str, ...]:
    """The optimizer slots that a parameter has."""
    if config.optimizer.name == "sgd":
        return ("momentum_buffer",) if config.optimizer.momentum else ()
    return ("exp_avg", "exp_avg_sq")


def open_checkpoint(directory: Path) -> Checkpoint:
    """Open one. Raises UserError where it is not whole."""
    state, problem = verified(directory, STATE)
    if state is None:
        raise UserError(f"{directory}: {problem or 'no such checkpoint'}; choose another checkpoint")
    if state["format"] != FORMAT:
        raise UserError(f"{directory}: of format {state['format']}, and this Lockstep reads {FORMAT}")
    return Checkpoint(directory, state)


def newest(run_dir: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a run; one that is damaged is named in the log and the one before it taken."""
    for directory in reversed(_saved(run_dir)):
        try:
            return open_checkpoint(directory)
        except UserError as error:
            log.warning("%s", error)
    return None


def _saved(run_dir: Path) -> list[Path]:
    """Directories of checkpoints by step, the damaged ones too."""
    found = [path for path in (run_dir / DIRECTORY).glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


class Checkpoints:
    """Saves a run's checkpoints, writing each in the background from a copy, and keeps the newest and the best."""

    def __init__(self, config: Config, run_dir: Path, initial: InitialCheckpoint) -> None:
        self.directory, self.keep = run_dir / DIRECTORY, config.train.keep_checkpoints
        self.initial, self.settings = initial, settings(config, initial.data_fingerprint)
        self.directory.mkdir(exist_ok=True)
        for abandoned in self.directory.glob("*.partial"):
            shutil.rmtree(abandoned)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def save(self, state: State, position: Position) -> None:
        """Save a checkpoint. Raises UserError where the one before could not be written."""
        self.finish()
        copy = State(*({name: each.copy() for name, each in part.items()} for part in (state.parameters, state.slots)))
        self._writing = self._thread.submit(self._write, copy, Position(**asdict(position)))

    def finish(self) -> None:
        """Wait until the last one is on the disk. Raises UserError where it could not be written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """End the thread; what it still writes is finished."""
        self._thread.shutdown()

    def _write(self, state: State, position: Position) -> None:
        directory = self.directory / f"step-{position.step:08}"
        extra = {
            "format": FORMAT,
            "position": asdict(position),
            "config_fingerprint": fingerprint(self.settings),
            "settings": self.settings,
        }
        found, _ = verified(directory, STATE)
        if found is not None:  # saved when a signal came, and now evaluated
            write_manifest(directory, {**found, **extra}, STATE)
        else:
            _remove(directory)
            partial = directory.with_suffix(".partial")
            try:
                shutil.copytree(self.initial.directory, partial, ignore=shutil.ignore_patterns(WEIGHTS, MANIFEST))
                save_file(state.parameters, partial / WEIGHTS, metadata={"format": "pt"})
                save_file(state.slots, partial / OPTIMIZER)
                publish(partial, directory, extra, STATE)
            except (OSError, SafetensorError) as error:
                raise cannot_be_written(directory, error) from error
            finally:
                shutil.rmtree(partial, ignore_errors=True)  # on a full disk all the more
        self._prune()

    def _prune(self) -> None:
        """Remove all but the newest `keep` and the best by validation loss."""
        saved = _saved(self.directory.parent)
        best = _best(saved)
        for path in saved[: -self.keep]:
            if path != best:
                _remove(path)


def best(run_dir: Path) -> Checkpoint | None:
    """The checkpoint with the lowest validation loss. Raises UserError where it is not whole."""
    directory = _best(_saved(run_dir))
    return open_checkpoint(directory) if directory else None


def _best(saved: list[Path]) -> Path | None:
    losses = {}
    for path in saved:
        with suppress(OSError, ValueError, KeyError, TypeError):
            losses[path] = float(json.loads((path / STATE).read_text())["position"]["validation"]["loss"])
    return min(losses, key=lambda path: losses[path], default=None)


def _remove(directory: Path) -> None:
    """Remove a checkpoint, first from view: it must not be found in part."""
    if directory.exists():
        gone = directory.rename(directory.with_suffix(".removed.partial"))
        shutil.rmtree(gone)
