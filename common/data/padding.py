"""How much of a batch is padding, and `train.padding=auto`: which way of computing has the least of it."""

import numpy as np

from common.data.batches import Split, training_batches

SAMPLED_EXAMPLES = 1600
# What a way must save of the tokens computed by `global` before it is worth its own cost: more, smaller operations
# (micro_batches), or moving tokens in and out of the layout of attention (unpadded).
WORTH = {"unpadded": 0.05, "micro_batches": 0.2}


def choose_padding(split: Split, global_batch_size: int, seed: int, world_size: int, unpadded: bool) -> str:
    """The value of `train.padding` that auto stands for. unpadded: whether the model can compute without padding."""
    if not split.lengths(np.arange(min(len(split), SAMPLED_EXAMPLES))).any():
        return "global"  # images
    computed = {
        padding: count_computed_tokens(split, global_batch_size, seed, world_size, padding)
        for padding in ("global", "micro_batches", *(["unpadded"] if unpadded else []))
    }
    for padding, worth in WORTH.items():
        if computed.get(padding, computed["global"]) < (1 - worth) * computed["global"]:
            return padding
    return "global"


def count_computed_tokens(split: Split, global_batch_size: int, seed: int, world_size: int, padding: str) -> int:
    """Tokens, real and padding, that the model computes in the first global batches."""
    steps = range(1, 1 + -(-SAMPLED_EXAMPLES // global_batch_size))
    batches = training_batches(split, global_batch_size, seed, steps, padding)
    return sum(
        split.count_tokens(part)
        for batch in batches
        for rank in range(world_size)
        for part in batch.shard(rank, world_size)
    )
