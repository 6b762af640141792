"""One named array of a split. All examples have the same shape, or the array is ragged: their first axis differs."""

from dataclasses import dataclass

import numpy as np

from common.data.ragged import compute_padded_width, locate_values


@dataclass(frozen=True)
class Column:
    """The values of n examples.

    Attributes:
        values: Values of shape [n, ...]. For a ragged array, the t values of all examples one after the other, [t,
        ...].
        offsets: Integers [n + 1] of a ragged array: example i is values[offsets[i]:offsets[i + 1]].
    """

    values: np.ndarray
    offsets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of an example. None is the ragged axis, which is the first."""
        shape: tuple[int, ...] = self.values.shape[1:]
        return shape if self.offsets is None else (None, *shape)

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return the length of each example, int64 [n]; 0 if the array is not ragged."""
        if self.offsets is None:
            return np.zeros(len(ids), np.int64)
        return self.offsets[ids + 1] - self.offsets[ids]

    def gather(self, ids: np.ndarray, batch: np.ndarray, padding: int = 0) -> np.ndarray:
        """Return the examples `ids`, [n, ...]. If they are ragged, pad them to the longest of the examples `batch`."""
        if self.offsets is None:
            return _widen(self.values[ids])
        values, rows, positions = self.concatenate(ids)
        width = compute_padded_width(self.lengths(batch))
        padded = np.full((len(ids), width, *values.shape[1:]), padding, values.dtype)
        padded[rows, positions] = values
        return padded

    def concatenate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the t values of ragged examples one after the other, and the index of each in a flat padded batch.

        Returns:
            The values [t, ...]; the row of each value and its position in the row, int64 [t].
        """
        assert self.offsets is not None
        rows, positions = locate_values(self.lengths(ids))
        return _widen(self.values[self.offsets[ids][rows] + positions]), rows, positions


def _widen(values: np.ndarray) -> np.ndarray:
    """Return unsigned integers, which the cache stores to save space, as int32, and other types unchanged."""
    return values.astype(np.int32) if values.dtype.kind == "u" else values
