"""The log of the updates of an asynchronous run, which is on a server and outlives the workers."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from common.data.batches import GlobalBatch

SPARE_ROWS = 1000  # rows for updates that are repeated after a worker has crashed


class UpdateRow(NamedTuple):
    """A row of the log, which describes one update. Inside a compiled step the values are tensors."""

    key: float | tf.Tensor  # UpdateLog.key_of of the batch; 0 in a row that was not written
    loss: float | tf.Tensor
    grad_norm: float | tf.Tensor
    # The number of updates after the worker read the variables and before this update; -1 until the update has ended.
    staleness: float | tf.Tensor
    worker: float | tf.Tensor  # index of the worker that makes the update


class UpdateLog:
    """A row for each update, by the number of the update. A version is a number of updates.

    Args:
        updates: number of updates that the run will make.
        world_size: number of workers.
    """

    def __init__(self, updates: int, world_size: int) -> None:
        self.world_size = world_size
        self.first_version = 0  # number of updates before the run was resumed, which have no rows
        rows = np.zeros((updates + SPARE_ROWS, len(UpdateRow._fields)))
        with tf.device("/job:ps/task:0/device:CPU:0"):  # not in the strategy's scope, which would divide the variable
            self.rows = tf.Variable(rows, trainable=False)

    def key_of(self, batch: GlobalBatch) -> int:
        """Return the number, above 0, of a part of a global batch in the log."""
        return batch.step * self.world_size + batch.part

    def write(self, number: tf.Tensor, row: UpdateRow) -> tf.Tensor:
        """Write the row of an update in a compiled step. Return the row as float64 [fields of UpdateRow]."""
        values = tf.stack([tf.cast(value, tf.float64) for value in row])
        index = tf.minimum(number - self.first_version, self.rows.shape[0] - 1)
        tf.raw_ops.ResourceScatterUpdate(resource=self.rows.handle, indices=index, updates=values)
        return values

    def read(self, version: tf.Variable) -> Iterator[UpdateRow]:
        """Yield the rows of all updates of this run, from the first one to the one that made `version`."""
        for row in self.rows[: version - self.first_version].numpy().tolist():
            yield UpdateRow(*row)

    def find_repeated(self, rows: list[UpdateRow]) -> list[list[int]]:
        """Return step and part for every extra time that an update was made, wholly or partly.

        A worker may crash after it has begun to update the variables. Its update is not reported, and its batch is
        dispatched to another worker. [0, 0] stands for an update whose worker crashed before it logged the batch.
        """
        keys, counts = np.unique([int(row.key) for row in rows], return_counts=True)
        repeated = np.repeat(keys, counts - (keys > 0)).tolist()  # every row of key 0, and all but one of other keys
        return [list(divmod(int(key), self.world_size)) for key in repeated]
