"""An extension for runs that a test disturbs: a batch takes 0.05 s more, in which no process computes.

A run then lasts long enough with a model that computes for only a few milliseconds per step. If the environment
variable PACE_END names a file, a batch takes 0.3 s more until the file exists: a test ends the pace when it has seen
enough.
"""

import os
import time
from pathlib import Path

from common.data.batches import Arrays, GlobalBatch

PACE_END = os.environ.get("PACE_END")
SECONDS = 0.3 if PACE_END else 0.05

shard = GlobalBatch.shard


def shard_later(batch: GlobalBatch, rank: int, world_size: int) -> list[Arrays]:
    if PACE_END is None or not Path(PACE_END).exists():
        time.sleep(SECONDS)
    return shard(batch, rank, world_size)


GlobalBatch.shard = shard_later  # type: ignore[assignment, method-assign]
