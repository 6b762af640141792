"""Choice of `train.padding`: how the sequences of a batch are padded to a common length."""

import numpy as np

from common.data.batches import Split, training_batches

SAMPLED_EXAMPLES = 1600
# Share of the tokens of padding=global that another padding must save to be chosen. It pays for more and smaller
# operations (micro_batches), or for moving tokens into and out of the layout of attention (unpadded).
REQUIRED_SAVING = {"unpadded": 0.05, "micro_batches": 0.2}


def choose_padding(split: Split, global_batch_size: int, seed: int, world_size: int, can_unpad: bool) -> str:
    """Return the value of `train.padding` that `auto` stands for.

    Args:
        split: Training examples.
        global_batch_size: Examples of a global batch.
        seed: Seed of the batch plan.
        world_size: Number of replicas.
        can_unpad: Whether the model can compute without padding.
    """
    if not split.lengths(np.arange(min(len(split), SAMPLED_EXAMPLES))).any():
        return "global"  # images have no tokens
    tokens = {
        padding: count_computed_tokens(split, global_batch_size, seed, world_size, padding)
        for padding in ("global", "micro_batches", *(["unpadded"] if can_unpad else []))
    }
    for padding, saving in REQUIRED_SAVING.items():
        if padding in tokens and tokens[padding] < (1 - saving) * tokens["global"]:
            return padding
    return "global"


def count_computed_tokens(split: Split, global_batch_size: int, seed: int, world_size: int, padding: str) -> int:
    """Return how many tokens, real and padding, the model computes in the first global batches."""
    steps = range(1, 1 + -(-SAMPLED_EXAMPLES // global_batch_size))
    batches = training_batches(split, global_batch_size, seed, steps, padding)
    return sum(
        split.count_tokens(micro_batch)
        for batch in batches
        for rank in range(world_size)
        for micro_batch in batch.shard(rank, world_size)
    )
