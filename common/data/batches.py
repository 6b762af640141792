"""Global batches: what the batch plan says, gathered from the cache when a replica asks for its shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from common.data import plan


class Split(Protocol):
    """The examples of one split: see common.data.text.token_cache and common.data.images.image_cache."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> np.ndarray:
        """The class of each example, int32 [n]."""

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Tokens of each example, int64 [n]; 0 of images."""

    def gather(self, ids: np.ndarray, batch: np.ndarray) -> dict[str, np.ndarray]:
        """The inputs of a model and `labels` int32 [n] of the examples `ids`, which are some of the global batch's."""


@dataclass(frozen=True)
class GlobalBatch:
    """The examples of one synchronous update. `size` is their number; `tokens` counts theirs, padding left out.

    part: which of the parts of global batch `step` this is, for asynchronous updates.
    """

    step: int
    ids: np.ndarray
    split: Split
    part: int = 0

    @property
    def size(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        return int(self.split.lengths(self.ids).sum())

    def shard(self, rank: int, world_size: int) -> dict[str, np.ndarray]:
        """What replica `rank` trains on: see `shards`."""
        ids, weights, bounds = self._padded(world_size)
        return self._gather(ids[bounds[rank] : bounds[rank + 1]], weights[bounds[rank] : bounds[rank + 1]])

    def shards(self, world_size: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """All shards in one set of arrays, and their bounds int64 [world_size + 1].

        Text: `input_ids`, `token_type_ids`, `attention_mask` int32 [rows, width], padded to the longest example of the
        global batch. Images: `images` float32 [rows, height, width, channels]. Both: `labels` int32 [rows]; `weights`
        float64 [rows]: 1, or 0 for the rows that fill up a global batch smaller than the world size, so that no shard
        is empty. A loss is sum(weights * losses) / size.
        """
        ids, weights, bounds = self._padded(world_size)
        return self._gather(ids, weights), bounds

    def parts(self, count: int) -> list["GlobalBatch"]:
        """Its shards as batches of their own, without the empty ones."""
        bounds = plan.shard_bounds(self.size, count)
        return [
            GlobalBatch(self.step, self.ids[bounds[part] : bounds[part + 1]], self.split, part)
            for part in range(min(count, self.size))
        ]

    def _padded(self, world_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        missing = max(0, world_size - self.size)
        ids = np.concatenate((self.ids, np.repeat(self.ids[:1], missing)))
        weights = np.concatenate((np.ones(self.size), np.zeros(missing)))
        return ids, weights, plan.shard_bounds(len(ids), world_size)

    def _gather(self, ids: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
        return {**self.split.gather(ids, self.ids), "weights": weights}


def training_batches(split: Split, global_batch_size: int, seed: int, steps: range) -> Iterator[GlobalBatch]:
    """The global batches of `steps`."""
    for step in steps:
        yield GlobalBatch(step, plan.example_ids(len(split), global_batch_size, seed, step), split)


def evaluation_batches(split: Split, global_batch_size: int) -> Iterator[GlobalBatch]:
    """Every example once, in order."""
    for index, start in enumerate(range(0, len(split), global_batch_size)):
        yield GlobalBatch(index + 1, np.arange(start, min(start + global_batch_size, len(split))), split)
