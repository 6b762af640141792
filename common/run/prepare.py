"""What a run starts from, built and verified once on each host: its data, its initial weights, its checkpoint.

The command writes what it found into the run directory; its processes open that without verifying it again, so their
start-up does not grow with the corpus.
"""

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.config import compose
from common.config.models import TrainedTokenizerSettings
from common.config.resolve import resolve_steps
from common.config.schema import Config
from common.data.batch_plan import PLAN_VERSION, count_steps_for, steps_per_epoch
from common.data.batches import Split
from common.data.cache import Cache, open_cache, reopen_cache
from common.data.padding import choose_padding
from common.errors import UserError
from common.models.initial_weights import InitialCheckpoint, open_initial_checkpoint, reopen_initial_checkpoint
from common.models.pretrained import find_source, open_source
from common.run.checkpoint import Checkpoint, reopen_checkpoint
from common.run.directory import chief_run_dir
from common.run.resume import AUTO, adopt, check_resume, find_checkpoint
from common.run.rows import replace_text
from common.run.summary import restarts
from common.training.state import Position

log = logging.getLogger("lockstep")

PREPARED = "prepared.json"


@dataclass(frozen=True)
class Prepared:
    """What the processes of a run on one host open. checkpoint: None where training starts from the initial weights."""

    cache: Cache
    initial: InitialCheckpoint
    checkpoint: Checkpoint | None

    @property
    def start(self) -> Position:
        """Where training starts."""
        return self.checkpoint.position if self.checkpoint else Position()

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """What must be the same on every host."""
        return {
            "batch plan": f"version {PLAN_VERSION}",
            "data": self.cache.fingerprint,
            "initial weights": self.initial.fingerprint,
            "checkpoint": self.checkpoint.fingerprint if self.checkpoint else None,
        }


def prepare(config: Config, run_dir: Path | None) -> tuple[Config, Prepared]:
    """Build what is missing and verify all of it. Returns the config with its steps filled in. Raises UserError.

    run_dir: of the run's chief, which may have checkpoints; None where there is none yet.
    """
    return _prepare(config, find_checkpoint(config, run_dir))


def _prepare(config: Config, checkpoint: Checkpoint | None) -> tuple[Config, Prepared]:
    source = find_source(config)
    if checkpoint is not None and config.data.allow_change and isinstance(config.model, TrainedTokenizerSettings):
        source = open_source(checkpoint.directory, config)  # new data must not bring a new tokenizer
    cache = open_cache(config, source)
    initial = open_initial_checkpoint(config, cache, source)
    if (steps := _steps_of_epochs(config, len(cache.train))) is not None:
        log.info("train.epochs=%d: %d steps (train.steps is not used)", config.train.epochs, steps)
    config = _resolve_padding(resolve_steps(config, steps), cache.train)
    _warn(config, len(cache.train))
    if checkpoint is not None:
        check_resume(config, cache, checkpoint)
    return config, Prepared(cache, initial, checkpoint)


def prepare_run(config: Config, run_dir: Path, node: int = 0) -> tuple[Config, Prepared]:
    """In the command that starts a run: prepare, and write config.yaml and what was found. Raises UserError.

    A host after the first need not see the checkpoint: see common.cluster.checkpoint_transfer.
    """
    config, prepared = _prepare(config, _find_checkpoint(config, run_dir, node))
    if prepared.checkpoint is not None:
        log.info("resuming from %s", prepared.checkpoint.directory)
        if config.resume != AUTO and node == 0:
            prepared = replace(prepared, checkpoint=adopt(prepared.checkpoint, run_dir))
    elif restarts() > 0 and node == 0:
        log.warning("%s: has no checkpoint; starting from the initial weights", run_dir)
    elif config.resume is not None and node == 0:
        log.info("resume=%s: no checkpoint there; starting from the initial weights", config.resume)
    config = replace(config, run_dir=str(run_dir))
    compose.save_config(config, run_dir / "config.yaml")
    save_prepared(prepared, run_dir)
    return config, prepared


def is_complete(config: Config, prepared: Prepared, run_dir: Path) -> bool:
    """Whether an earlier command has trained all steps of a run and left all that a run leaves."""
    summary = run_dir / "summary.json"
    if prepared.start.plan_position < config.train.steps or not summary.exists():
        return False
    complete = bool(json.loads(summary.read_text())["status"] == "completed")
    if complete:
        log.info("%s: all %d steps are trained; to train longer raise train.steps", run_dir, config.train.steps)
    return complete


def _find_checkpoint(config: Config, run_dir: Path, node: int) -> Checkpoint | None:
    try:
        return find_checkpoint(config, chief_run_dir(run_dir, node))
    except UserError:
        if node == 0:
            raise
        return None


def prepare_restart(config: Config, run_dir: Path) -> None:
    """On the first host, before the processes of a run are started again: find the newest checkpoint."""
    prepare_from(config, run_dir, find_checkpoint(config, run_dir))


def prepare_from(config: Config, run_dir: Path, checkpoint: Checkpoint | None) -> None:
    """Have the processes that are started next start from this checkpoint; None for the initial weights."""
    save_prepared(Prepared(*_open_data(config, _places(run_dir)), checkpoint), run_dir)


def prepared_checkpoint(run_dir: Path) -> Checkpoint | None:
    """The checkpoint that was prepared; None where there is none, or it was removed while the run continued."""
    place = _places(run_dir)["checkpoint"]
    return reopen_checkpoint(Path(place)) if place and Path(place).exists() else None


def save_prepared(prepared: Prepared, run_dir: Path) -> None:
    """Write where everything is, and its fingerprints."""
    places = {
        "cache": str(prepared.cache.directory.resolve()),
        "initial": str(prepared.initial.directory.resolve()),
        "checkpoint": str(prepared.checkpoint.directory.resolve()) if prepared.checkpoint else None,
        "fingerprints": prepared.fingerprints,
    }
    replace_text(run_dir / PREPARED, json.dumps(places, indent=1) + "\n")


def open_prepared(config: Config, run_dir: Path) -> Prepared:
    """In a process of a run: open what the command prepared."""
    places = _places(run_dir)
    prepared = Prepared(*_open_data(config, places), prepared_checkpoint(run_dir))
    # A checkpoint that was evaluated after it was saved has another fingerprint then.
    content = [{**each, "checkpoint": None} for each in (prepared.fingerprints, places["fingerprints"])]
    assert content[0] == content[1], "what was prepared has changed"
    return prepared


def _places(run_dir: Path) -> dict[str, Any]:
    """What `save_prepared` wrote."""
    places: dict[str, Any] = json.loads((run_dir / PREPARED).read_text())
    return places


def _open_data(config: Config, places: dict[str, Any]) -> tuple[Cache, InitialCheckpoint]:
    return reopen_cache(config, Path(places["cache"])), reopen_initial_checkpoint(Path(places["initial"]))


def _resolve_padding(config: Config, split: Split) -> Config:
    train, strategy = config.train, config.strategy
    if train.padding != "auto":
        return config
    padding = choose_padding(split, train.global_batch_size, train.seed, strategy.replicas or 1, config.model.unpadded)
    if config.model.global_batch_norm:
        padding = "global"  # whose statistics are asked for
    return replace(config, train=replace(train, padding=padding))


def _warn(config: Config, examples: int) -> None:
    """Log a line for each setting that is allowed but seldom meant."""
    train, warmup = config.train, config.schedule.warmup_steps
    if train.global_batch_size > examples:
        log.warning(
            "train.global_batch_size=%d: more than the %d training examples, so every step trains on all of them",
            *(train.global_batch_size, examples),
        )
    if warmup and warmup >= train.steps:
        log.warning(
            "schedule.warmup_steps=%d: the run has %d steps, so the learning rate never falls; lower it",
            *(warmup, train.steps),
        )


def _steps_of_epochs(config: Config, examples: int) -> int | None:
    """The steps that `train.epochs` are; None where steps are given."""
    train = config.train
    if train.epochs is None:
        return None
    if train.virtual_epoch_examples is None:
        return train.epochs * steps_per_epoch(examples, train.global_batch_size)
    return count_steps_for(examples, train.global_batch_size, train.epochs * train.virtual_epoch_examples)
