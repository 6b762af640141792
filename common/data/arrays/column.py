"""One named array of a split: of one shape for each example, or ragged."""

from dataclasses import dataclass

import numpy as np

from common.data.ragged import compute_padded_width, locate_values


@dataclass(frozen=True)
class Column:
    """The values of n examples: [n, ...], or where ragged those of all examples one after the other [t, ...].

    offsets: of a ragged array, integers [n + 1]: example i is values[offsets[i]:offsets[i + 1]].
    """

    values: np.ndarray
    offsets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of an example; None is the ragged axis, which is the first."""
        shape: tuple[int, ...] = self.values.shape[1:]
        return shape if self.offsets is None else (None, *shape)

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """How long each example is, int64 [n]; 0 where the array is not ragged."""
        if self.offsets is None:
            return np.zeros(len(ids), np.int64)
        return self.offsets[ids + 1] - self.offsets[ids]

    def gather(self, ids: np.ndarray, batch: np.ndarray, padding: int = 0) -> np.ndarray:
        """The examples `ids`; a ragged array is filled up with `padding`, to a width for the longest of `batch`."""
        if self.offsets is None:
            return _widened(self.values[ids])
        values, rows, positions = self.flat(ids)
        padded = np.full(
            (len(ids), compute_padded_width(self.lengths(batch)), *values.shape[1:]), padding, values.dtype
        )
        padded[rows, positions] = values
        return padded

    def flat(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The values of ragged examples, one after the other, the row of each and its position there."""
        assert self.offsets is not None
        rows, positions = locate_values(self.lengths(ids))
        return _widened(self.values[self.offsets[ids][rows] + positions]), rows, positions


def _widened(values: np.ndarray) -> np.ndarray:
    """Unsigned integers, which are stored as narrow as they are, become int32."""
    return values.astype(np.int32) if values.dtype.kind == "u" else values
