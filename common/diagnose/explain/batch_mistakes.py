"""What else the replicas may have trained on in a step: mistakes of a sampler, and of the seed of dropout's masks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from common.data.batch_plan import steps_per_epoch
from common.data.batches import Arrays, GlobalBatch
from common.diagnose.side_run import Run
from common.training.planned_batches import find_batch

Shards = Sequence[Sequence[Arrays]]


@dataclass(frozen=True)
class Mistake:
    """stage: the one that the cause belongs to. tensor: what of the batch is another. shards: of each replica.

    weight: of the global batch.
    """

    cause: str
    stage: str
    tensor: str
    words: str
    shards: Shards
    weight: float


def mistakes(run: Run, index: int) -> Iterator[Mistake]:
    """Of the step at this index of those that are looked at."""
    batch, count = run.batches[index], count_of_shards(run)
    period = steps_per_epoch(len(batch.split), run.config.train.global_batch_size)
    epoch, position = divmod(batch.step - 1, period)
    if epoch:
        again = replace(batch, ids=find_batch(run.config, batch.split, position + 1).ids)
        words = f"trains on the examples of step {position + 1} again: the order is not drawn anew in epoch"
        words += f" {epoch + 1} (set_epoch)"
        yield Mistake("epoch_not_reshuffled", "batch", "ids", words, shards_of(again, count), again.weight)
    if batch.dropout_seed is None:
        return
    if batch.step > 1:
        words = "drops by the masks of step 1 again: the seed of its masks does not have the step"
        masked = shards_of(replace(batch, step=1), count)
        yield Mistake("same_masks_in_all_steps", "dropout", "masks", words, masked, batch.weight)
    if count > 1:
        words = "has the same dropout masks on all ranks: the seed of its masks does not have the rank"
        masked = with_masks_of_one(shards_of(batch, count))
        yield Mistake("same_masks_on_all_ranks", "dropout", "masks", words, masked, batch.weight)


def count_of_shards(run: Run) -> int:
    """One for each replica; one for all where BatchNorm has the statistics of all of them."""
    return 1 if run.config.model.has_global_batch_norm else run.replicas


def shards_of(batch: GlobalBatch, count: int) -> list[list[Arrays]]:
    """What each of so many replicas trains on."""
    return [batch.shard(rank, count) for rank in range(count)]


def with_masks_of_one(shards: Shards) -> list[list[Arrays]]:
    """The examples of each shard with the masks that the largest shard has for the examples in the same places."""
    largest = max(shards, key=lambda shard: sum(len(part["dropout_keys"]) for part in shard))
    return [
        [
            {**part, "dropout_keys": other["dropout_keys"][: len(part["dropout_keys"])]}
            for other, part in zip(largest, shard, strict=True)
        ]
        for shard in shards
    ]
