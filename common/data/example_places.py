"""Search in the predictions of a micro-batch for the examples of a global batch.

The place of an example is the index of its prediction in the micro-batch. A replica returns the prediction of each
example that it computed, and 0 for all others. The sum over all replicas then has every example exactly once, because
the rows that fill up a batch are the place of no example.
"""

import numpy as np

NOWHERE = -1  # the place of an example that another micro-batch computes


def locate_rows(rows: np.ndarray, size: int) -> np.ndarray:
    """Return the row of each example in a micro-batch, int32 [size].

    Args:
        rows: The index in the global batch of each row of the micro-batch; `size` or more for rows that only fill it.
        size: The number of examples of the global batch.
    """
    places = np.full(size, NOWHERE, np.int32)
    (real,) = np.nonzero(rows < size)
    places[rows[real]] = real
    return places


def locate_positions(rows: np.ndarray, shape: tuple[int, ...], batch_shape: tuple[int, ...]) -> np.ndarray:
    """Return the index of each position of each example in the flat predictions of a micro-batch, int32 [batch_shape].

    Args:
        rows: As for `locate_rows`.
        shape: The shape of the predictions of the micro-batch, such as (rows, tokens).
        batch_shape: The shape of the predictions of the whole global batch, which may be padded to more positions.
    """
    places = np.full(batch_shape, NOWHERE, np.int32)
    (real,) = np.nonzero(rows < batch_shape[0])
    indexes = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    corner = places[(slice(None), *map(slice, shape[1:]))]  # a view: the positions that the micro-batch has
    corner[rows[real]] = indexes[real]
    return places
