"""Global batches, and their division into the arrays that a replica computes.

A global batch is the examples of one synchronous update, which `common.data.batch_plan` chooses. Each replica gets a
shard of it, as one micro-batch or more, whose gradients are added up. Only the ids of the examples (their indices in
the split) are kept here. The arrays are gathered from the cache when the replica asks for its shard.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeGuard

import numpy as np

from common.data import batch_plan
from common.data.dropout import derive_example_keys
from common.data.example_places import locate_positions, locate_rows

MICRO_BATCHES = 4  # number of micro-batches of a shard with padding=micro_batches

Arrays = dict[str, np.ndarray]  # name -> array of a micro-batch


class Split(Protocol):
    """Interface of the examples of one split, for training or for validation.

    `TokenizedSplit`, `ImageSplit` and `ArraySplit` implement it. `ids` are always the indices of n examples.
    """

    def __len__(self) -> int: ...

    @property
    def labels(self) -> np.ndarray:
        """The class of every example, int32 [n]. `ArraySplit` may have numbers or several labels instead."""

    @property
    def example_shapes(self) -> Mapping[str, tuple[int | None, ...]]:
        """The shape of an example in each array of `gather` whose first axis is always the examples.

        None is an axis whose size depends on the batch. Arrays of text have none of these shapes.
        """

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each example, int64 [n]; 0 for data without tokens, such as images."""

    def weights(self, ids: np.ndarray) -> np.ndarray:
        """Return the weight of each example in the loss, float64 [n]."""

    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of losses of each example, float64 [n]: 1, or the sum of the weights of its labels.

        If there are several outputs, each of them has its own, [n, outputs].
        """

    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """Return the model's inputs and `labels` of the examples, padded to the longest of the examples `batch`."""

    def gather_unpadded(self, ids: np.ndarray) -> Arrays:
        """Return the inputs without padding, and `labels`, for a model that computes on real tokens only."""

    def count_tokens(self, arrays: Arrays) -> int:
        """Return the number of tokens, real and padding, that a model computes for arrays of this split."""


class OutputSplit(Split, Protocol):
    """Interface of a split whose examples have labels of several outputs. `MultiOutputSplit` implements it."""

    def gather_labels(self, ids: np.ndarray) -> np.ndarray:
        """Return the labels of all outputs, flat, float64 [n, labels]."""


@dataclass(frozen=True)
class GlobalBatch:
    """The examples of one synchronous update, or a part of these examples for an asynchronous update."""

    step: int  # number of the batch, from 1
    ids: np.ndarray  # indices of the examples in the split, int64 [size]
    split: Split
    padding: str  # value of `train.padding`: global, micro_batches or unpadded
    part: int = 0  # index of the part, if `divide` made it
    dropout_seed: int | None = None  # seed of the masks of aligned dropout; None without aligned dropout
    class_weights: Sequence[float] | None = None  # weight of each class in the loss: `task.class_weights`
    mark_real: bool = False  # whether shards have `real_rows`, see `shard`
    micro_batches: int = 1  # number of micro-batches of a shard: `train.micro_batches`
    predictions: str = ""  # what an evaluation gathers of each example: "", "classes" or "outputs"
    mark_places: bool = False  # whether shards have `batch_places`, see `shard`
    output_weights: Sequence[float] | None = None  # weight of each output's loss; None for one output, or to evaluate

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Number of tokens without padding."""
        return int(self.split.lengths(self.ids).sum())

    @property
    def weight(self) -> float:
        """Divisor of the sum of weight * loss over all examples; 1 if all examples have weight 0.

        If there are several outputs, it is 1, because shards have weights that are divided already.
        """
        return float(self._sum_loss_counts()) or 1.0 if self.output_weights is None else 1.0

    @property
    def evaluation_weight(self) -> float | np.ndarray:
        """Total weight of the examples in an evaluation: of each output, float64 [outputs], if there are several."""
        return self._sum_loss_counts() if _has_outputs(self.split) else self.weight

    def _sum_loss_counts(self) -> np.ndarray:
        """Return the number of losses of the batch, weighted by the weights of the examples.

        Returns:
            float64 []; with several outputs the number for each, float64 [outputs].
        """
        weighted = self._example_weights() * self.split.loss_counts(self.ids).T
        return np.asarray(weighted.sum(-1))

    def _loss_weights(self) -> np.ndarray:
        """Return the factor of the loss of each example, float64 [size], or of each of its outputs [size, outputs]."""
        weights = self._example_weights()
        if not _has_outputs(self.split):
            return weights
        divisors = self._sum_loss_counts()
        factors = np.ones(len(divisors))
        if self.output_weights is not None:
            factors = np.asarray(self.output_weights) / np.where(divisors > 0, divisors, 1)
        return weights[:, None] * factors

    def _example_weights(self) -> np.ndarray:
        weights = self.split.weights(self.ids)
        if self.class_weights is not None:
            weights = weights * np.asarray(self.class_weights, np.float64)[self.labels]
        return weights

    @property
    def labels(self) -> np.ndarray:
        """Labels of the examples [size, ...], padded to the longest of them if they are ragged.

        If there are several outputs, the labels of all outputs, flat, float64 [size, labels].
        """
        is_ragged = None in (self.split.example_shapes.get("labels") or ())
        if is_ragged or getattr(self.split, "transforms_labels", False):
            return self.split.gather(self.ids, self.ids)["labels"]
        if _has_outputs(self.split):
            return self.split.gather_labels(self.ids)
        return self.split.labels[self.ids]

    @property
    def prediction_shape(self) -> tuple[int, ...]:
        """Shape of the predicted classes of the examples. Labels that are numbers are the probabilities of classes.

        If there are several outputs, the predictions of an example are flat, (size, -1).
        """
        if _has_outputs(self.split):
            return self.size, -1
        return _remove_class_axis(self.labels)

    def shard(self, rank: int, world_size: int) -> list[Arrays]:
        """Return the examples of replica `rank` as micro-batches.

        The examples are dealt by their lengths, so that all shards cost about the same, and a micro-batch has examples
        of similar length. A global batch that has too few examples is filled up with copies of weight 0, so that no
        micro-batch is empty. The loss of a micro-batch is sum(weights * losses) / `GlobalBatch.weight`.

        Args:
            rank: Number of the replica.
            world_size: Number of replicas.

        Returns:
            The arrays of each micro-batch. A row is an example:
                - All data: `labels` int32 [rows], or the other labels of an `ArraySplit`; `weights` float64 [rows], or
                  [rows, outputs] if there are several outputs.
                - Text: `input_ids`, `token_type_ids`, `attention_mask` int32 [rows, width]. The width is the length of
                  the longest example of the global batch (padding=global) or of the micro-batch. For padding=unpadded,
                  `TokenizedSplit.gather_unpadded` describes the arrays.
                - Images: `images` float32 [rows, height, width, channels].
                - With aligned dropout: `dropout_keys` int64 [rows], of `derive_example_keys`.
                - With `mark_real`: `real_rows` int32 [rows], 1 for examples and 0 for copies that fill up the batch.
                  Statistics of the batch must leave the copies out.
                - With `mark_places`: `batch_places` int32 [size], the row of each example of the global batch; -1 if
                  another micro-batch has the example.
                - With `predictions`: `class_places` or `output_places` int32, where `common.data.example_places` finds
                  the prediction of each example of the global batch; -1 if another micro-batch has the example.
        """
        micro_batch_count = self.micro_batches * (MICRO_BATCHES if self.padding == "micro_batches" else 1)
        missing = max(0, world_size * micro_batch_count - self.size)
        ids = np.concatenate((self.ids, np.repeat(self.ids[:1], missing)))
        weights = self._loss_weights()
        weights = np.concatenate((weights, np.zeros((missing, *weights.shape[1:]))))
        real_rows = np.repeat(np.array([1, 0], np.int32), (self.size, missing))
        shard_rows = batch_plan.deal_examples(self.split.lengths(ids), world_size)[rank]
        micro_batch_rows = np.split(
            shard_rows, batch_plan.compute_shard_bounds(len(shard_rows), micro_batch_count)[1:-1]
        )
        shard = [
            {
                **self._gather(ids[rows]),
                "weights": weights[rows],
                **self._derive_dropout_keys(ids[rows]),
                **({"real_rows": real_rows[rows]} if self.mark_real else {}),
            }
            for rows in micro_batch_rows
        ]
        if self.mark_places:
            for arrays, rows in zip(shard, micro_batch_rows, strict=True):
                arrays["batch_places"] = locate_rows(rows, self.size)
        if self.predictions:
            self._locate_examples(shard, micro_batch_rows)
        return shard

    def _locate_examples(self, shard: list[Arrays], micro_batch_rows: list[np.ndarray]) -> None:
        has_positions = self.predictions == "classes" and not _has_outputs(self.split)
        shape = self.prediction_shape if has_positions else ()
        name = "class_places" if self.predictions == "classes" else "output_places"
        for arrays, rows in zip(shard, micro_batch_rows, strict=True):
            if has_positions:
                arrays[name] = locate_positions(rows, _remove_class_axis(arrays["labels"]), shape)
            else:
                arrays[name] = locate_rows(rows, self.size)

    def _gather(self, ids: np.ndarray) -> Arrays:
        if self.padding == "unpadded":
            return self.split.gather_unpadded(ids)
        return self.split.gather(ids, self.ids if self.padding == "global" else ids)

    def _derive_dropout_keys(self, ids: np.ndarray) -> Arrays:
        if self.dropout_seed is None:
            return {}
        return {"dropout_keys": derive_example_keys(self.dropout_seed, self.step, ids)}

    def divide(self, count: int) -> list["GlobalBatch"]:
        """Divide the batch for asynchronous updates: return up to `count` parts, none of them empty."""
        bounds = batch_plan.compute_shard_bounds(self.size, count)
        return [
            replace(self, ids=self.ids[bounds[part] : bounds[part + 1]], part=part)
            for part in range(min(count, self.size))
        ]


def _has_outputs(split: Split) -> TypeGuard[OutputSplit]:
    """Check whether the examples of a split have labels of several outputs."""
    return hasattr(split, "gather_labels")


def _remove_class_axis(labels: np.ndarray) -> tuple[int, ...]:
    """Return the shape of labels without the axis of the classes, which only labels that are numbers have."""
    return labels.shape[:-1] if labels.dtype.kind == "f" else labels.shape


def training_batches(  # noqa: PLR0913  the options are the fields of GlobalBatch
    split: Split,
    global_batch_size: int,
    seed: int,
    steps: range,
    padding: str,
    aligned_dropout: bool = False,
    class_weights: Sequence[float] | None = None,
    mark_real: bool = False,
    micro_batches: int = 1,
) -> Iterator[GlobalBatch]:
    """Yield the training batches of the steps, which are numbered from 1."""
    dropout_seed = seed if aligned_dropout else None
    for step in steps:
        stream_block = getattr(split, "block_size", None)
        ids = batch_plan.select_example_ids(len(split), global_batch_size, seed, step, stream_block)
        yield GlobalBatch(step, ids, split, padding, 0, dropout_seed, class_weights, mark_real, micro_batches)


def evaluation_batches(  # noqa: PLR0913  the options are the fields of GlobalBatch
    split: Split,
    global_batch_size: int,
    padding: str,
    aligned_dropout: bool = False,
    class_weights: Sequence[float] | None = None,
    mark_real: bool = False,
    micro_batches: int = 1,
    predictions: str = "",
) -> Iterator[GlobalBatch]:
    """Yield every example once, from the shortest to the longest, so that there is little padding.

    With aligned dropout the batches have dropout keys as the training batches do, because a compiled step expects the
    same arrays.
    """
    dropout_seed = 0 if aligned_dropout else None
    by_length = np.argsort(split.lengths(np.arange(len(split))), kind="stable")
    for index, start in enumerate(range(0, len(split), global_batch_size)):
        ids = by_length[start : start + global_batch_size]
        yield GlobalBatch(
            index + 1, ids, split, padding, 0, dropout_seed, class_weights, mark_real, micro_batches, predictions
        )
