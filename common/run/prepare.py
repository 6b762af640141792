"""What a run starts from, built and verified once on each host: its data, its initial weights, its checkpoint.

The command writes what it found into the run directory; its processes open that without verifying it again, so their
start-up does not grow with the corpus.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from common.config import compose
from common.config.models import TrainedTokenizerSettings
from common.config.resolve import resolve_steps
from common.config.schema import Config
from common.data.batch_plan import count_steps_for, steps_per_epoch
from common.data.batches import Split
from common.data.cache import open_cache
from common.data.padding import choose_padding
from common.errors import UserError
from common.models.initial_weights import open_initial_checkpoint
from common.models.pretrained import find_source, open_source
from common.run.checkpoint import Checkpoint
from common.run.context import RunContext
from common.run.directory import chief_run_dir, open_run_dir
from common.run.inputs import PreparedInputs, save_inputs
from common.run.resume import AUTO, adopt, check_resume, find_checkpoint
from common.run.summary import restarts

log = logging.getLogger("lockstep")


def prepare_inputs(config: Config, run_dir: Path | None) -> tuple[Config, PreparedInputs]:
    """Build what is missing and verify all of it. Returns the config with its steps filled in. Raises UserError.

    run_dir: of the run's chief, which may have checkpoints; None where there is none yet.
    """
    return _prepare(config, find_checkpoint(config, run_dir))


def _prepare(config: Config, checkpoint: Checkpoint | None) -> tuple[Config, PreparedInputs]:
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
    return config, PreparedInputs(cache, initial, checkpoint)


@contextmanager
def open_run(config: Config, framework: str, node: int = 0) -> Iterator[RunContext]:
    """Create and lock the directory of a run, and prepare the inputs of the run."""
    with open_run_dir(config, framework, node) as run_dir:
        yield prepare_run(config, framework, run_dir, node)


def prepare_run(config: Config, framework: str, run_dir: Path, node: int = 0) -> RunContext:
    """Prepare the inputs, and write config.yaml and prepared.json for the processes of the run. Raises UserError.

    A host after the first need not see the checkpoint: common.cluster.checkpoint_transfer sends it.
    """
    config, inputs = _prepare(config, _find_checkpoint(config, run_dir, node))
    if inputs.checkpoint is not None:
        log.info("resuming from %s", inputs.checkpoint.directory)
        if config.resume != AUTO and node == 0:
            inputs = replace(inputs, checkpoint=adopt(inputs.checkpoint, run_dir))
    elif restarts() > 0 and node == 0:
        log.warning("%s: has no checkpoint; starting from the initial weights", run_dir)
    elif config.resume is not None and node == 0:
        log.info("resume=%s: no checkpoint there; starting from the initial weights", config.resume)
    config = replace(config, run_dir=str(run_dir))
    compose.save_config(config, run_dir / "config.yaml")
    save_inputs(inputs, run_dir)
    return RunContext(config, framework, inputs)


def is_complete(context: RunContext) -> bool:
    """Check whether an earlier command has trained all steps of the run and written its summary."""
    config, summary = context.config, context.run_dir / "summary.json"
    if context.inputs.start.plan_position < config.train.steps or not summary.exists():
        return False
    complete = bool(json.loads(summary.read_text())["status"] == "completed")
    if complete:
        log.info("%s: all %d steps are trained; to train longer raise train.steps", context.run_dir, config.train.steps)
    return complete


def _find_checkpoint(config: Config, run_dir: Path, node: int) -> Checkpoint | None:
    try:
        return find_checkpoint(config, chief_run_dir(run_dir, node))
    except UserError:
        if node == 0:
            raise
        return None


def prepare_restart(context: RunContext) -> None:
    """Have the processes that the first host starts next resume from the newest checkpoint."""
    prepare_start(context, find_checkpoint(context.config, context.run_dir))


def prepare_start(context: RunContext, checkpoint: Checkpoint | None) -> None:
    """Have the processes that are started next start from this checkpoint; None for the initial weights."""
    save_inputs(replace(context.inputs, checkpoint=checkpoint), context.run_dir)


def _resolve_padding(config: Config, split: Split) -> Config:
    train, strategy = config.train, config.strategy
    if train.padding != "auto":
        return config
    padding = choose_padding(
        split, train.global_batch_size, train.seed, strategy.replicas or 1, config.model.supports_unpadded
    )
    if config.model.has_global_batch_norm:
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
