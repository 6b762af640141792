"""Global batches whose shards a thread computes while earlier steps run.

Transforms of examples take time that a step would wait for. NumPy and the frameworks release Python's lock while they
compute, so a thread is enough.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any

from typing_extensions import override

from common.config.schema import Config
from common.data.batches import Arrays, GlobalBatch, Split
from common.data.transforms.transformed_split import TransformedSplit
from common.training.planned_batches import planned_batches

DEPTH = 2  # global batches that are computed before they are needed

ShardCall = tuple[int, int]  # arguments of `GlobalBatch.shard`


@dataclass(frozen=True)
class ScheduledBatch(GlobalBatch):
    """A global batch whose shards may be computed already.

    Attributes:
        calls: The shards that were requested from any batch. The same ones will be requested from later batches.
        shards: The shards of this batch that a thread has computed or will compute.
    """

    calls: dict[ShardCall, None] = field(default_factory=dict)
    shards: dict[ShardCall, Future[list[Arrays]]] = field(default_factory=dict)

    @override
    def shard(self, rank: int, world_size: int) -> list[Arrays]:
        call = (rank, world_size)
        self.calls[call] = None
        future = self.shards.pop(call, None)
        return super().shard(*call) if future is None else future.result()

    def compute_ahead(self, pool: Executor) -> None:
        """Let a thread compute the shards that were requested from earlier batches."""
        for call in [*self.calls]:
            if call not in self.shards:
                self.shards[call] = pool.submit(super().shard, *call)

    @override
    def divide(self, count: int) -> list[GlobalBatch]:
        return GlobalBatch(**_get_values(self)).divide(count)


@contextmanager
def open_batches(config: Config, split: Split, steps: range) -> Iterator[Iterator[GlobalBatch]]:
    """Open the planned batches of these steps. If their examples are transformed, a thread computes shards ahead.

    The thread ends with the context.
    """
    batches = planned_batches(config, split, steps)
    if not isinstance(split, TransformedSplit):
        yield batches
        return
    pool = ThreadPoolExecutor(1, "look-ahead")
    try:
        yield look_ahead(batches, pool)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def look_ahead(batches: Iterator[GlobalBatch], pool: Executor) -> Iterator[GlobalBatch]:
    """Yield the batches. Compute the shards of the next ones in the pool while the caller uses a batch.

    The shards that the caller requests from the first batch show which ones it needs.
    """
    calls: dict[ShardCall, None] = {}
    upcoming: deque[ScheduledBatch] = deque()
    while True:
        for batch in islice(batches, DEPTH + 1 - len(upcoming)):
            upcoming.append(ScheduledBatch(**_get_values(batch), calls=calls))
        if not upcoming:
            return
        scheduled = upcoming.popleft()
        for later in upcoming:
            later.compute_ahead(pool)
        yield scheduled


def _get_values(batch: GlobalBatch) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in fields(GlobalBatch)}
