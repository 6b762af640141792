"""Iterators over one batch, which a compiled function accepts in place of the iterator over its data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class OneBatch:
    """An iterator over one batch that was taken from another iterator.

    A tf.function that was compiled for the other iterator is not compiled again for this one: both have the same type
    and the same element_spec, with the same unknown dimensions. Only a batch of another record that has other lengths
    needs another element_spec.

    Attributes:
        iterator: The iterator.
    """

    def __init__(self, original: Iterator[object], batch: object, strategy: tf.distribute.Strategy) -> None:
        """Make the iterator.

        Args:
            original: Iterator of tf.data, or of a strategy.
            batch: The batch that it returned.
            strategy: Strategy of the model.
        """
        # The object that owns the resources of `iterator` must live as long.
        if isinstance(original, tf.distribute.DistributedIterator):
            shards = split_by_replica(batch, strategy)
            self._owner = iter(strategy.distribute_datasets_from_function(lambda _: _concatenate(shards)))
        else:
            self._owner = iter(tf.data.Dataset.from_tensors(batch))
            if not _fits(batch, original):
                self.iterator = self._owner
                return
        tensors = tf.nest.flatten(self._owner, expand_composites=True)
        self.iterator = tf.nest.pack_sequence_as(original, tensors, expand_composites=True)


def _fits(batch: object, iterator: Any) -> bool:  # noqa: ANN401  only some iterators have an element_spec
    """Check whether the tensors of a batch have the known dimensions of an iterator's elements."""
    specs = tf.nest.flatten(iterator.element_spec, expand_composites=True)
    tensors = tf.nest.flatten(batch, expand_composites=True)
    return all(tensor.shape.is_compatible_with(spec.shape) for tensor, spec in zip(tensors, specs))  # noqa: B905


def split_by_replica(batch: object, strategy: tf.distribute.Strategy) -> list[object]:
    """Return the part of a distributed batch for each replica of this process."""

    def select(replica: int) -> object:
        return tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[replica], batch)

    return [select(replica) for replica in range(len(strategy.extended.worker_devices))]


def _concatenate(elements: list[object]) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensors(elements[0])
    for element in elements[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(element))
    return dataset
