"""The global batches of a run, whose examples the batch plan fixes, and the batches of an evaluation."""

from collections.abc import Iterator
from dataclasses import replace

from common.config.metrics import choose_predictions
from common.config.schema import Config
from common.data import batch_plan
from common.data.batches import GlobalBatch, Split, evaluation_batches, training_batches
from common.data.transforms.transformed_split import TransformedSplit


def planned_batches(config: Config, split: Split, steps: range) -> Iterator[GlobalBatch]:
    """Return the global batches of these steps (from 1), in the order of the plan."""
    train, size = config.train, config.train.global_batch_size
    batches = training_batches(split, size, train.seed, steps, train.padding, *_batch_options(config, split))
    weights, mark_places = config.task.output_weights, config.task.compares_examples
    batches = (replace(batch, output_weights=weights, mark_places=mark_places) for batch in batches)
    if not isinstance(split, TransformedSplit):
        return batches
    per_epoch = batch_plan.steps_per_epoch(len(split), size)
    return (
        replace(batch, split=split.select_batch((batch.step - 1) // per_epoch, batch.step, batch.ids))
        for batch in batches
    )


def find_batch(config: Config, split: Split, number: int) -> GlobalBatch:
    """Return global batch `number` (from 1) of the plan. Workers of asynchronous runs receive only its number."""
    return next(planned_batches(config, split, range(number, number + 1)))


def has_equal_batches(config: Config, split: Split) -> bool:
    """Check whether all global batches of a split have the same number of examples."""
    return batch_plan.has_equal_batches(len(split), config.train.global_batch_size)


def validation_batches(config: Config, split: Split) -> Iterator[GlobalBatch]:
    """Return the global batches of an evaluation."""
    train = config.train
    options = (*_batch_options(config, split), choose_predictions(config))
    batches = evaluation_batches(split, train.global_batch_size, train.padding, *options)
    return (replace(batch, mark_places=config.task.compares_examples) for batch in batches)


def _batch_options(config: Config, split: Split) -> tuple[bool, list[float] | None, bool, int]:
    """Return arguments that `training_batches` and `evaluation_batches` take in this order.

    The arguments are aligned_dropout, class_weights, mark_real and micro_batches. class_weights is None if an example
    has several labels, because the loss of the example contains their weights. mark_real marks rows that only fill a
    batch, so that a BatchNorm over the global batch leaves them out.
    """
    model = config.model
    has_several_labels = bool(split.example_shapes.get("labels"))
    class_weights = None if has_several_labels else config.task.label_weights
    mark_real = model.has_global_batch_norm and _has_small_batch(config, split)
    return model.has_aligned_dropout, class_weights, mark_real, config.micro_batches


def _has_small_batch(config: Config, split: Split) -> bool:
    """Check whether the smallest global batch has fewer examples than there are replicas."""
    size = config.train.global_batch_size
    return (len(split) % size or size) < config.strategy.world_size
