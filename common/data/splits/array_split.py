"""A split of named arrays or of blocks of plain text, which gathers batches."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.config.tasks import TaskSettings
from common.data.batches import Arrays
from common.data.label_weights import count_losses, get_padding_label
from common.data.ragged import build_mask, compute_padded_width
from common.data.splits.array_column import Column


@dataclass(frozen=True)
class ArraySplit:
    """Memory-mapped arrays of one split. `ids` are indices of n examples."""

    inputs: Mapping[str, Column]
    label: Column  # the labels of all examples
    example_weights: np.ndarray | None = None  # float64 [n]; None: all examples have the same weight
    task: TaskSettings | None = None  # decides for how many losses an example counts; None: one loss

    def __len__(self) -> int:
        return len(self.label)

    @property
    def labels(self) -> np.ndarray:
        """Classes int32 [n], numbers float32 [n, ...], or a class of each token or pixel of an example, int32 [n, ...].

        Ragged labels of tokens stand one after the other, int32 [t]; `gather` returns them as [n, width].
        """
        return self.label.values

    @property
    def example_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """The shape of an example in every array; None is a ragged axis."""
        masks = {f"{name}_mask": (None,) for name, column in self.inputs.items() if column.offsets is not None}
        inputs = {name: column.shape for name, column in self.inputs.items()}
        return {**inputs, **masks, "labels": self.label.shape}

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each example, int64 [n]: the lengths of its ragged inputs, added up.

        If no input is ragged, it is the number of labelled tokens, or 0 if the labels are not of tokens.
        """
        ragged = [column.lengths(ids) for column in self.inputs.values() if column.offsets is not None]
        if not ragged and self._has_token_labels:
            return self._count_labels(ids).astype(np.int64)
        return sum(ragged, np.zeros(len(ids), np.int64))

    def array_lengths(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return the length of each example in each ragged array by name, int64 [n]."""
        columns = {**self.inputs, "labels": self.label}
        return {name: column.lengths(ids) for name, column in columns.items() if column.offsets is not None}

    def weights(self, ids: np.ndarray) -> np.ndarray:
        """Return the weight of each example in the loss, float64 [n]."""
        return np.ones(len(ids)) if self.example_weights is None else self.example_weights[ids]

    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of losses of each example, float64 [n]: 1, or the sum of the weights of its labels."""
        if self.task is None or not self.label.shape:
            return np.ones(len(ids))
        return count_losses(self.task, self.label.gather(ids, ids, get_padding_label(self.task)))

    def _count_labels(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of labels >= 0 of each example, float64 [n]."""
        if self.label.offsets is not None:
            labels, rows, _ = self.label.concatenate(ids)
            return np.bincount(rows, labels >= 0, len(ids))
        return np.count_nonzero(self.label.values[ids] >= 0, axis=tuple(range(1, self.label.values.ndim))).astype(float)

    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """Return every input by its name, and `labels`.

        A ragged input is padded with 0 to the longest of the examples `batch`, and gets a mask NAME_mask int32 [n,
        width], which is 1 for real values. Ragged labels are padded with a label that the task ignores.
        """
        arrays = {}
        for name, column in self.inputs.items():
            arrays[name] = column.gather(ids, batch)
            if column.offsets is not None:
                arrays[f"{name}_mask"] = build_mask(column.lengths(ids), compute_padded_width(column.lengths(batch)))
        return {**arrays, "labels": self.label.gather(ids, batch, get_padding_label(self.task))}

    def gather_unpadded(self, ids: np.ndarray) -> Arrays:
        """Return the arrays padded to the longest of `ids`, because named arrays cannot be computed without padding."""
        return self.gather(ids, ids)

    def count_tokens(self, arrays: Arrays) -> int:
        """Return the number of values in the padded inputs or, if no input is ragged, in the labels of tokens."""
        ragged = [arrays[f"{name}_mask"].size for name, column in self.inputs.items() if column.offsets is not None]
        return sum(ragged) if ragged or not self._has_token_labels else arrays["labels"].size

    @property
    def _has_token_labels(self) -> bool:
        return self.label.offsets is not None or (len(self.label.shape) > 0 and self.label.values.dtype.kind != "f")
