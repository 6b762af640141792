"""The batch plan: which examples form global batch k, a pure function of corpus size, batch size, seed and step.

It knows nothing of the strategy or the world size: changing the replicas changes the shards of a global batch, never
its content.
"""

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count)
    order.setflags(write=False)
    return order


def steps_per_epoch(count: int, global_batch_size: int) -> int:
    """Global batches that cover `count` examples once; the last one may be smaller."""
    return -(-count // global_batch_size)


def examples_until(count: int, global_batch_size: int, step: int) -> int:
    """Training examples in the global batches up to `step`; 0 before the first."""
    epochs, position = divmod(max(0, step), steps_per_epoch(count, global_batch_size))
    return epochs * count + min(position * global_batch_size, count)


def steps_for(count: int, global_batch_size: int, examples: int) -> int:
    """Global batches until so many examples have been trained on."""
    epochs, rest = divmod(examples, count)
    return epochs * steps_per_epoch(count, global_batch_size) + -(-rest // global_batch_size)


def example_ids(count: int, global_batch_size: int, seed: int, step: int) -> np.ndarray:
    """Ids of the examples of global batch `step` (from 1), int64 [<= global_batch_size]."""
    assert step >= 1
    epoch, position = divmod(step - 1, steps_per_epoch(count, global_batch_size))
    start = position * global_batch_size
    return _order(count, seed, epoch)[start : start + global_batch_size]


def shard_bounds(size: int, world_size: int) -> np.ndarray:
    """Where the shards of a global batch begin and end, int64 [world_size + 1]: sizes within 1, larger ones first."""
    sizes = np.full(world_size, size // world_size)
    sizes[: size % world_size] += 1
    return np.concatenate(([0], np.cumsum(sizes)))
