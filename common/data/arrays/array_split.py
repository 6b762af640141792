"""A split of named arrays, and the batches that are gathered from it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.data.arrays.column import Column
from common.data.batches import Arrays
from common.data.ragged import build_mask, compute_padded_width

NO_LABEL = -1  # what ragged labels are padded with: like any below 0, it is no label


@dataclass(frozen=True)
class ArraySplit:
    """Memory-mapped arrays of one split. example_weights: float64 [n]; None: all examples count alike."""

    inputs: Mapping[str, Column]
    label: Column
    example_weights: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.label)

    @property
    def labels(self) -> np.ndarray:
        """Classes int32 [n], numbers float32 [n] or [n, k], or a label for each token int32 [n, t].

        Ragged labels stand one after the other, int32 [t]; `gather` has them by example.
        """
        return self.label.values

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """The sum of the lengths of an example's ragged inputs, int64 [n].

        Where none are ragged: the number of its labels, if each of its tokens has one, else 0.
        """
        ragged = [column.lengths(ids) for column in self.inputs.values() if column.offsets is not None]
        if not ragged and self._labels_tokens:
            return self.loss_counts(ids).astype(np.int64)
        return sum(ragged, np.zeros(len(ids), np.int64))

    def weights(self, ids: np.ndarray) -> np.ndarray:
        """The weight of each example in the loss, float64 [n]."""
        return np.ones(len(ids)) if self.example_weights is None else self.example_weights[ids]

    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        """How many losses each example has, float64 [n]: where each of its tokens has a label, those that are >= 0."""
        if self.label.offsets is not None:
            labels, rows, _ = self.label.flat(ids)
            return np.bincount(rows, labels >= 0, len(ids))
        if not self._labels_tokens:
            return np.ones(len(ids))
        return np.count_nonzero(self.label.values[ids] >= 0, axis=tuple(range(1, self.label.values.ndim))).astype(float)

    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """Every input by its name, and `labels`.

        A ragged input is padded with 0 to a width for the longest of `batch`, and has NAME_mask int32 [n, width]: 1
        where it is real. Ragged labels are padded with -1.
        """
        arrays = {}
        for name, column in self.inputs.items():
            arrays[name] = column.gather(ids, batch)
            if column.offsets is not None:
                arrays[f"{name}_mask"] = build_mask(column.lengths(ids), compute_padded_width(column.lengths(batch)))
        return {**arrays, "labels": self.label.gather(ids, batch, NO_LABEL)}

    def gather_unpadded(self, ids: np.ndarray) -> Arrays:
        """There is no layout without padding: as wide as the longest of `ids`."""
        return self.gather(ids, ids)

    def count_tokens(self, arrays: Arrays) -> int:
        """The sizes of the padded inputs; where none are ragged, of the labels of tokens."""
        ragged = [arrays[f"{name}_mask"].size for name, column in self.inputs.items() if column.offsets is not None]
        return sum(ragged) if ragged or not self._labels_tokens else arrays["labels"].size

    @property
    def _labels_tokens(self) -> bool:
        return self.label.offsets is not None or (len(self.label.shape) > 0 and self.label.values.dtype.kind != "f")
