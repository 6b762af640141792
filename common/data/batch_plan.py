"""The batch plan: which examples form global batch k, a pure function of corpus size, batch size, seed and step.

It knows nothing of the strategy or the world size: changing the replicas changes the shards of a global batch, never
its content. The order of an epoch is computed by index, so it takes the same memory for every corpus.
"""

import math
from functools import lru_cache

import numpy as np

PLAN_VERSION = 2  # of the order; raise it whenever the order changes. Version 1 shuffled a list of all ids
ROUNDS = 12
BLOCK = 4096  # positions that are computed together


def permute(count: int, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """The ids at these positions of an epoch's order, int64. An order has each of 0 to count - 1 once.

    A Feistel network with cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): an id is a
    cell of a table of rows x columns, hardly larger than `count`, and each round shifts its row by a hash of the column
    or its column by a hash of the row. A cell that is not an id goes through the network again until it is one. Only
    integers are used, so the order is the same on every machine. seed: below 2^64.
    """
    rows = np.uint64(math.isqrt(count - 1) + 1)
    columns = np.uint64(-(-count // int(rows)))
    keys = hash_words(
        hash_words(hash_words(np.array([seed], np.uint64)) + np.uint64(epoch)) + np.arange(ROUNDS, dtype=np.uint64)
    )
    ids = positions.astype(np.uint64)
    outside = np.arange(len(ids))
    while len(outside):
        column, row = np.divmod(ids[outside], rows)
        for of_column, of_row in keys.reshape(-1, 2):
            row = (row + hash_words(column ^ of_column) % rows) % rows
            column = (column + hash_words(row ^ of_row) % columns) % columns
        ids[outside] = column * rows + row
        outside = outside[ids[outside] >= np.uint64(count)]
    return ids.astype(np.int64)


def hash_words(x: np.ndarray) -> np.ndarray:
    """A hash of each uint64 to 64 bits: one step of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@lru_cache(maxsize=4)
def _block(count: int, seed: int, epoch: int, number: int) -> np.ndarray:
    """The ids at BLOCK positions of an epoch's order, from number * BLOCK."""
    return permute(count, seed, epoch, np.arange(number * BLOCK, min((number + 1) * BLOCK, count)))


def steps_per_epoch(count: int, global_batch_size: int) -> int:
    """Global batches that cover `count` examples once; the last one may be smaller."""
    return -(-count // global_batch_size)


def count_examples_until(count: int, global_batch_size: int, step: int) -> int:
    """Training examples in the global batches up to `step`; 0 before the first."""
    epochs, position = divmod(max(0, step), steps_per_epoch(count, global_batch_size))
    return epochs * count + min(position * global_batch_size, count)


def count_steps_for(count: int, global_batch_size: int, examples: int) -> int:
    """Global batches until so many examples have been trained on."""
    epochs, rest = divmod(examples, count)
    return epochs * steps_per_epoch(count, global_batch_size) + -(-rest // global_batch_size)


def select_example_ids(count: int, global_batch_size: int, seed: int, step: int) -> np.ndarray:
    """Ids of the examples of global batch `step` (from 1), int64 [<= global_batch_size]."""
    assert step >= 1
    epoch, position = divmod(step - 1, steps_per_epoch(count, global_batch_size))
    start = position * global_batch_size
    end = min(start + global_batch_size, count)
    first = start // BLOCK
    blocks = [_block(count, seed, epoch, number) for number in range(first, -(-end // BLOCK))]
    ids = np.concatenate(blocks)[start - first * BLOCK : end - first * BLOCK]
    ids.setflags(write=False)
    return ids


def deal_examples(lengths: np.ndarray, world_size: int) -> list[np.ndarray]:
    """Deal the examples of a global batch to shards of about the same cost: positions in the batch of each shard's.

    From the longest to the shortest they go to the first shard up to the last, then to the last down to the first, and
    so on. The numbers of examples differ by at most 1, the sums of the lengths by at most the longest.
    """
    by_length = np.argsort(-lengths, kind="stable")
    turn = np.concatenate((np.arange(world_size), np.arange(world_size)[::-1]))
    shard_of = np.resize(turn, len(lengths))
    return [by_length[shard_of == shard] for shard in range(world_size)]


def compute_shard_bounds(size: int, world_size: int) -> np.ndarray:
    """Where the shards of a global batch begin and end, int64 [world_size + 1]: sizes within 1, larger ones first."""
    sizes = np.full(world_size, size // world_size)
    sizes[: size % world_size] += 1
    return np.concatenate(([0], np.cumsum(sizes)))
