"""How much of a batch is padding, and `train.padding=auto`: which way of computing has the least of it."""

from common.data.batches import Split, training_batches

SAMPLED_BATCHES = 50
# What a way must save of the tokens computed by `global` before it is worth its own cost: more, smaller operations
# (micro_batches), or moving tokens in and out of the layout of attention (unpadded).
WORTH = {"unpadded": 0.05, "micro_batches": 0.2}


def choose_padding(split: Split, global_batch_size: int, seed: int, world_size: int, unpadded: bool) -> str:
    """The value of `train.padding` that auto stands for. unpadded: whether the model can compute without padding."""
    computed = {
        padding: computed_tokens(split, global_batch_size, seed, world_size, padding)
        for padding in ("global", "micro_batches", *(["unpadded"] if unpadded else []))
    }
    for padding, worth in WORTH.items():
        if computed.get(padding, computed["global"]) < (1 - worth) * computed["global"]:
            return padding
    return "global"


def computed_tokens(split: Split, global_batch_size: int, seed: int, world_size: int, padding: str) -> int:
    """Tokens, real and padding, that the model computes in the first global batches; 0 of images."""
    batches = training_batches(split, global_batch_size, seed, range(1, SAMPLED_BATCHES + 1), padding)
    return sum(
        part.get("input_ids", part["labels"][:0]).size
        for batch in batches
        for rank in range(world_size)
        for part in batch.shard(rank, world_size)
    )
