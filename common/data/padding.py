"""Choice of the value of `train.padding` that costs the fewest tokens, for a config that leaves it at `auto`.

- `global`: all examples of a global batch are padded to the length of its longest example.
- `micro_batches`: each replica divides its share of the global batch into micro-batches of examples of similar length,
  and pads each micro-batch to the length of its own longest example.
- `unpadded`: the model computes real tokens only. Attention alone pads.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common.data.batches import Split, training_batches

SAMPLED_EXAMPLES = 1600  # training examples on which the choice is based
# The share of the tokens of padding=global that another padding must save to be chosen. A smaller saving is not worth
# its cost: micro_batches needs more and smaller operations, and unpadded pads and unpads the tokens around attention.
# The first padding that saves enough is chosen.
REQUIRED_SAVING = {"unpadded": 0.05, "micro_batches": 0.2}
# The tokens that micro_batches must save in a step of a replica, times the parameters of the model. With a small model,
# the additional forward and backward passes take longer than the padding.
SMALLEST_SAVED_PRODUCT = 2**30


def choose_padding(
    split: Split, global_batch_size: int, seed: int, world_size: int, can_unpad: bool, parameters: int
) -> str:
    """Return the value of `train.padding` that `auto` stands for.

    Args:
        split: Training examples.
        global_batch_size: Examples of a global batch.
        seed: Seed of the batch plan.
        world_size: Number of replicas.
        can_unpad: Whether the model supports padding=unpadded.
        parameters: Number of values in all parameters of the model.
    """
    if not split.lengths(np.arange(min(len(split), SAMPLED_EXAMPLES))).any():
        return "global"  # the data has no tokens: for example, images
    tokens = count_computed_tokens(
        split, global_batch_size, seed, world_size, ["global", "micro_batches", *(["unpadded"] if can_unpad else [])]
    )
    saved = (tokens["global"] - tokens["micro_batches"]) / _count_sampled_steps(global_batch_size) / world_size
    if saved * parameters < SMALLEST_SAVED_PRODUCT:
        del tokens["micro_batches"]
    for padding, saving in REQUIRED_SAVING.items():
        if padding in tokens and tokens[padding] < (1 - saving) * tokens["global"]:
            return padding
    return "global"


def count_computed_tokens(
    split: Split, global_batch_size: int, seed: int, world_size: int, paddings: Sequence[str]
) -> dict[str, int]:
    """Return the number of tokens, real and padding, that the model computes for the first SAMPLED_EXAMPLES examples.

    Each batch is planned once for all paddings, because shuffling an epoch takes longer than padding a batch.

    Returns:
        The number of tokens for each of the paddings.
    """
    steps = range(1, _count_sampled_steps(global_batch_size) + 1)
    tokens = dict.fromkeys(paddings, 0)
    for planned_batch in training_batches(split, global_batch_size, seed, steps, "global"):
        for padding in paddings:
            batch = replace(planned_batch, padding=padding)
            shards = (batch.shard(rank, world_size) for rank in range(world_size))
            tokens[padding] += sum(split.count_tokens(micro_batch) for shard in shards for micro_batch in shard)
    return tokens


def _count_sampled_steps(global_batch_size: int) -> int:
    return -(-SAMPLED_EXAMPLES // global_batch_size)
