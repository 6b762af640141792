"""Batch plan: which examples form global batch k, as a pure function of corpus size, batch size, seed and step.

An example is named by its id, its index in the split. The plan does not depend on the strategy or the world size: with
another number of replicas, a global batch has other shards, but the same examples. `permute` computes any part of the
order of an epoch, so the plan takes the same memory for every corpus.
"""

import math
from functools import lru_cache

import numpy as np

PLAN_VERSION = 2  # raise it whenever the order of examples changes; version 1 shuffled a list of all ids
ROUNDS = 12  # rounds of the Feistel network
BLOCK = 4096  # positions of an epoch's order that are computed and kept together


def permute(count: int, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """Return the ids at the given positions of an epoch's order, which has every id from 0 to count - 1 once.

    The order is a Feistel network with cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
    2002). The ids are the cells of a table of rows x columns, which has hardly more than `count` cells. Each round
    shifts the row by a hash of the column, or the column by a hash of the row. A result that is not below `count` goes
    through the network again until it is. Only integers are used, so the order is the same on every machine.

    Args:
        count: Number of examples.
        seed: Seed of the order, below 2^64.
        epoch: Number of the epoch, from 0.
        positions: Integers [n] from 0 to count - 1.

    Returns:
        The ids, int64 [n].
    """
    rows = np.uint64(math.isqrt(count - 1) + 1)
    columns = np.uint64(-(-count // int(rows)))
    epoch_key = hash_words(hash_words(np.array([seed], np.uint64)) + np.uint64(epoch))
    round_keys = hash_words(epoch_key + np.arange(ROUNDS, dtype=np.uint64))
    ids = positions.astype(np.uint64)
    pending = np.arange(len(ids))
    while len(pending):
        column, row = np.divmod(ids[pending], rows)
        for column_key, row_key in round_keys.reshape(-1, 2):
            row = (row + hash_words(column ^ column_key) % rows) % rows
            column = (column + hash_words(row ^ row_key) % columns) % columns
        ids[pending] = column * rows + row
        pending = pending[ids[pending] >= np.uint64(count)]
    return ids.astype(np.int64)


def hash_words(words: np.ndarray) -> np.ndarray:
    """Hash each uint64 to 64 bits, by one step of SplitMix64 (Steele, Lea and Flood, 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=4)
def _permute_block(count: int, seed: int, epoch: int, block: int) -> np.ndarray:
    """Return the ids of one block of an epoch's order. The last block may be smaller."""
    return permute(count, seed, epoch, np.arange(block * BLOCK, min((block + 1) * BLOCK, count)))


def _permute_stream(count: int, seed: int, epoch: int, positions: np.ndarray, block_size: int) -> np.ndarray:
    """Return the ids at these positions of an epoch of a stream. Each block of the stream is shuffled separately."""
    block_count = -(-count // block_size)
    ids = np.empty_like(positions)
    for block in np.unique(positions // block_size).tolist():
        start = block * block_size
        is_in_block = positions // block_size == block
        places = positions[is_in_block] - start
        ids[is_in_block] = start + permute(min(block_size, count - start), seed, epoch * block_count + block, places)
    return ids


def steps_per_epoch(count: int, global_batch_size: int) -> int:
    """Return the number of global batches in an epoch of `count` examples. The last batch may be smaller."""
    return -(-count // global_batch_size)


def count_examples_until(count: int, global_batch_size: int, step: int) -> int:
    """Return the number of examples in the global batches 1 to `step`. count: the number of examples in an epoch."""
    epochs, position = divmod(max(0, step), steps_per_epoch(count, global_batch_size))
    return epochs * count + min(position * global_batch_size, count)


def count_steps_for(count: int, global_batch_size: int, examples: int) -> int:
    """Return the number of steps to train on `examples` examples. count: the number of examples in an epoch."""
    epochs, remaining = divmod(examples, count)
    return epochs * steps_per_epoch(count, global_batch_size) + -(-remaining // global_batch_size)


def has_equal_batches(count: int, global_batch_size: int) -> bool:
    """Check whether all global batches of an epoch of `count` examples have the same number of examples."""
    return count <= global_batch_size or count % global_batch_size == 0


def select_example_ids(
    count: int, global_batch_size: int, seed: int, step: int, stream_block: int | None = None
) -> np.ndarray:
    """Return the ids of the examples of global batch `step` (from 1), int64 [at most global_batch_size].

    The examples of a stream are shuffled only within its blocks of `stream_block` consecutive examples.
    """
    assert step >= 1
    epoch, position = divmod(step - 1, steps_per_epoch(count, global_batch_size))
    start = position * global_batch_size
    end = min(start + global_batch_size, count)
    if stream_block is not None:
        return _permute_stream(count, seed, epoch, np.arange(start, end), stream_block)
    first_block = start // BLOCK
    blocks = [_permute_block(count, seed, epoch, block) for block in range(first_block, -(-end // BLOCK))]
    ids = np.concatenate(blocks)[start - first_block * BLOCK : end - first_block * BLOCK]
    ids.setflags(write=False)
    return ids


def deal_examples(lengths: np.ndarray, world_size: int) -> list[np.ndarray]:
    """Deal the examples of a global batch to shards of about the same cost.

    The examples are sorted from the longest to the shortest. They go to the first shard up to the last, then to the
    last shard down to the first, and so on. The numbers of examples differ by at most 1, and the sums of the lengths by
    at most the longest length.

    Returns:
        For each shard, the positions of its examples in the batch.
    """
    by_length = np.argsort(-lengths, kind="stable")  # stable, so that equal lengths are dealt alike everywhere
    turns = np.concatenate((np.arange(world_size), np.arange(world_size)[::-1]))
    shard_numbers = np.resize(turns, len(lengths))
    return [by_length[shard_numbers == shard] for shard in range(world_size)]


def compute_shard_bounds(size: int, world_size: int) -> np.ndarray:
    """Divide `size` examples in order: shard i has those from bounds[i] to bounds[i + 1], int64 [world_size + 1].

    The sizes differ by at most 1, and larger shards come first.
    """
    sizes = np.full(world_size, size // world_size)
    sizes[: size % world_size] += 1
    return np.concatenate(([0], np.cumsum(sizes)))
