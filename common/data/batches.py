"""Global batches: what the batch plan says, gathered from the cache when a replica asks for its shard."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from common.data import batch_plan
from common.data.dropout import derive_example_keys

MICRO_BATCHES = 4  # of a shard, with padding=micro_batches

Arrays = dict[str, np.ndarray]


class Split(Protocol):
    """The examples of one split: see `TokenizedSplit`, `ImageSplit` and `ArraySplit`."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> np.ndarray:
        """The class of each example, int32 [n]; of arrays also what a model is to predict, see `ArraySplit`."""

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Tokens of each example, int64 [n]; 0 where there are none, as in images."""

    def weights(self, ids: np.ndarray) -> np.ndarray:
        """The weight of each example in the loss, float64 [n]."""

    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        """How many losses each example has, float64 [n]: 1, or its labels where each of its tokens has one."""

    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """The inputs of a model and `labels` int32 [n] of the examples `ids`, as wide as the longest of `batch`."""

    def gather_unpadded(self, ids: np.ndarray) -> Arrays:
        """The inputs of a model that computes on real tokens alone, and `labels` int32 [n]."""

    def count_tokens(self, arrays: Arrays) -> int:
        """Tokens, real and padding, that a model computes of what was gathered."""


@dataclass(frozen=True)
class GlobalBatch:
    """The examples of one synchronous update. `size` is their number; `tokens` counts theirs, padding left out.

    padding: as `train.padding`. part: which of the parts of global batch `step` this is, for asynchronous updates.
    dropout_seed: where the model's dropout is aligned. class_weights: as `task.class_weights`. mark_real: see `shard`.
    """

    step: int
    ids: np.ndarray
    split: Split
    padding: str
    part: int = 0
    dropout_seed: int | None = None
    class_weights: Sequence[float] | None = None
    mark_real: bool = False

    @property
    def size(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        return int(self.split.lengths(self.ids).sum())

    @property
    def weight(self) -> float:
        """What the summed losses of its examples are divided by; 1 where none counts."""
        return float((self._weights() * self.split.loss_counts(self.ids)).sum()) or 1.0

    def _weights(self) -> np.ndarray:
        weights = self.split.weights(self.ids)
        if self.class_weights is not None:
            weights = weights * np.asarray(self.class_weights, np.float64)[self.split.labels[self.ids]]
        return weights

    def shard(self, rank: int, world_size: int, micro_batches: int = 1) -> list[Arrays]:
        """What replica `rank` trains on, as micro-batches: `micro_batches` times those that `padding` asks for.

        The examples are dealt by their lengths, so that all shards cost about the same, and a micro-batch has examples
        of like length. Each is what the split gathers, with `weights` float64 [rows]: those of the examples, and 0 for
        the rows that fill up a global batch which is too small, so that no micro-batch is empty. A loss is
        sum(weights * losses) / weight.

        Text: `input_ids`, `token_type_ids`, `attention_mask` int32 [rows, width], padded to the longest example of the
        global batch (padding=global) or of the micro-batch; for padding=unpadded see `gather_unpadded` of the token
        cache. Images: `images` float32 [rows, height, width, channels]. All: `labels` int32 [rows], and `dropout_keys`
        int64 [rows] where dropout is aligned: see common.data.dropout. With `mark_real`: `real_rows` int32 [rows], 0
        for the rows that fill up, which statistics of the batch must leave out.
        """
        count = micro_batches * (MICRO_BATCHES if self.padding == "micro_batches" else 1)
        missing = max(0, world_size * count - self.size)
        ids = np.concatenate((self.ids, np.repeat(self.ids[:1], missing)))
        weights = np.concatenate((self._weights(), np.zeros(missing)))
        real = np.repeat(np.array([1, 0], np.int32), (self.size, missing))
        mine = batch_plan.deal_examples(self.split.lengths(ids), world_size)[rank]
        parts = np.split(mine, batch_plan.compute_shard_bounds(len(mine), count)[1:-1])
        marks = [{"real_rows": real[part]} if self.mark_real else {} for part in parts]
        return [
            {**self._gather(ids[part]), "weights": weights[part], **self._keys(ids[part]), **mark}
            for part, mark in zip(parts, marks, strict=True)
        ]

    def _gather(self, ids: np.ndarray) -> Arrays:
        if self.padding == "unpadded":
            return self.split.gather_unpadded(ids)
        return self.split.gather(ids, self.ids if self.padding == "global" else ids)

    def _keys(self, ids: np.ndarray) -> Arrays:
        if self.dropout_seed is None:
            return {}
        return {"dropout_keys": derive_example_keys(self.dropout_seed, self.step, ids)}

    def divide(self, count: int) -> list["GlobalBatch"]:
        """It in parts that are batches of their own, without the empty ones."""
        bounds = batch_plan.compute_shard_bounds(self.size, count)
        return [
            replace(self, ids=self.ids[bounds[part] : bounds[part + 1]], part=part)
            for part in range(min(count, self.size))
        ]


def training_batches(
    split: Split,
    global_batch_size: int,
    seed: int,
    steps: range,
    padding: str,
    aligned_dropout: bool = False,
    class_weights: Sequence[float] | None = None,
    mark_real: bool = False,
) -> Iterator[GlobalBatch]:
    """The global batches of `steps`."""
    dropout_seed = seed if aligned_dropout else None
    for step in steps:
        ids = batch_plan.select_example_ids(len(split), global_batch_size, seed, step)
        yield GlobalBatch(step, ids, split, padding, 0, dropout_seed, class_weights, mark_real)


def evaluation_batches(
    split: Split,
    global_batch_size: int,
    padding: str,
    aligned_dropout: bool = False,
    class_weights: Sequence[float] | None = None,
    mark_real: bool = False,
) -> Iterator[GlobalBatch]:
    """Every example once, from the shortest to the longest: little padding is left.

    With aligned dropout they have keys as the training batches do, since a compiled step wants the same arrays.
    """
    dropout_seed = 0 if aligned_dropout else None
    by_length = np.argsort(split.lengths(np.arange(len(split))), kind="stable")
    for index, start in enumerate(range(0, len(split), global_batch_size)):
        ids = by_length[start : start + global_batch_size]
        yield GlobalBatch(index + 1, ids, split, padding, 0, dropout_seed, class_weights, mark_real)
