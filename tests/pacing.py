"""An extension for runs that a test disturbs: a batch takes 0.05 s more, in which no process computes.

A run then lasts long enough with a model that computes for only a few milliseconds per step.
"""

import time

from common.data.batches import Arrays, GlobalBatch

SECONDS = 0.05

shard = GlobalBatch.shard


def shard_later(batch: GlobalBatch, rank: int, world_size: int) -> list[Arrays]:
    time.sleep(SECONDS)
    return shard(batch, rank, world_size)


GlobalBatch.shard = shard_later  # type: ignore[assignment, method-assign]
