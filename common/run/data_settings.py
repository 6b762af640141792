"""The settings that depend on the data: the number of steps and the padding.

A virtual epoch is a number of examples that `train.virtual_epoch_examples` sets, whatever the size of the data.
"""

import logging
from dataclasses import replace

from common.config.averages import check_averages
from common.config.resolve import resolve_steps
from common.config.schema import Config
from common.data.batch_plan import count_steps_for, steps_per_epoch
from common.data.batches import Split
from common.data.padding import choose_padding
from common.data.transforms.transformed_split import get_source
from common.errors import UserError
from common.metrics.compute import check_functions
from common.training.schedule import find_highest_rate

log = logging.getLogger("lockstep")


def complete_config(config: Config, split: Split, parameters: int) -> Config:
    """Return the config with its number of steps and its padding filled in.

    Warnings name settings that are allowed but rarely intended. Raise UserError if the steps contradict the schedule.

    Args:
        config: the resolved config.
        split: the training examples.
        parameters: the number of values in all parameters of the model.
    """
    train, examples, steps = config.train, len(split), None
    if train.epochs is not None:
        if train.virtual_epoch_examples is None:
            steps = train.epochs * steps_per_epoch(examples, train.global_batch_size)
        else:
            steps = count_steps_for(examples, train.global_batch_size, train.epochs * train.virtual_epoch_examples)
        log.info("train.epochs=%d: %d steps (train.steps is not used)", train.epochs, steps)
    config = resolve_steps(config, steps)
    check_averages(config.ema, config.swa, config.train.steps)
    schedule = config.schedule
    assert schedule.total_steps is not None and schedule.warmup_steps is not None
    if schedule.warmup_steps % schedule.every:
        raise UserError(
            f"schedule.warmup_steps={schedule.warmup_steps}: must be a multiple of schedule.every={schedule.every}"
        )
    if schedule.warmup_start is not None and not schedule.warmup_steps:
        raise UserError(f"schedule.warmup_start={schedule.warmup_start}: needs schedule.warmup_steps of at least 1")
    if (
        schedule.uses_total_steps
        and schedule.total_steps < config.train.steps
        and schedule.warmup_steps >= schedule.total_steps
    ):
        raise UserError(
            f"schedule.warmup_steps={schedule.warmup_steps}: schedule.total_steps={schedule.total_steps} leaves no "
            "step after the warm-up; lower it or raise schedule.total_steps"
        )
    check_functions(config)
    find_highest_rate(config)  # raises UserError if a rate is invalid
    if (config.model.has_global_batch_norm or config.task.compares_examples) and train.padding == "auto":
        config = replace(config, train=replace(config.train, padding="global"))  # a shard is one micro-batch
    elif train.padding == "auto":
        replicas, supports_unpadded = config.strategy.replicas or 1, config.model.supports_unpadded
        source = get_source(split)  # transforms change the lengths of all examples alike
        padding = choose_padding(source, train.global_batch_size, train.seed, replicas, supports_unpadded, parameters)
        config = replace(config, train=replace(config.train, padding=padding))
    _warn_of_unlikely_settings(config, examples)
    return config


def _warn_of_unlikely_settings(config: Config, examples: int) -> None:
    """Log warnings for a config whose training data has this number of examples."""
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
