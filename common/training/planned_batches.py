"""The global batches of a run."""

from collections.abc import Iterator

from common.config.schema import Config
from common.data.batches import GlobalBatch, Split, evaluation_batches, training_batches


def planned_batches(config: Config, split: Split, steps: range) -> Iterator[GlobalBatch]:
    """Return the global batches of these steps, in the order of the plan."""
    train = config.train
    return training_batches(split, train.global_batch_size, train.seed, steps, train.padding, *_marks(config))


def find_batch(config: Config, split: Split, number: int) -> GlobalBatch:
    """Return global batch `number` of the plan; a worker receives only the number."""
    return next(planned_batches(config, split, range(number, number + 1)))


def validation_batches(config: Config, split: Split) -> Iterator[GlobalBatch]:
    """Return the global batches of an evaluation."""
    train = config.train
    return evaluation_batches(split, train.global_batch_size, train.padding, *_marks(config))


def _marks(config: Config) -> tuple[bool, list[float] | None, bool]:
    """What every batch of a run has beside its examples: see GlobalBatch."""
    return config.model.has_aligned_dropout, config.task.label_weights, config.model.has_global_batch_norm
