"""The global batches of a run."""

from collections.abc import Iterator

from common.config.schema import Config
from common.data.batches import GlobalBatch, Split, evaluation_batches, training_batches


def planned_batches(config: Config, split: Split, steps: range) -> Iterator[GlobalBatch]:
    """The global batches of these steps."""
    train, aligned, class_weights = config.train, config.model.aligned_dropout, config.task.weights_of_classes
    return training_batches(split, train.global_batch_size, train.seed, steps, train.padding, aligned, class_weights)


def find_batch(config: Config, split: Split, number: int) -> GlobalBatch:
    """Global batch `number` of the plan, for a worker that was sent its number only."""
    return next(planned_batches(config, split, range(number, number + 1)))


def validation_batches(config: Config, split: Split) -> Iterator[GlobalBatch]:
    """The batches of an evaluation."""
    train, aligned, class_weights = config.train, config.model.aligned_dropout, config.task.weights_of_classes
    return evaluation_batches(split, train.global_batch_size, train.padding, aligned, class_weights)
