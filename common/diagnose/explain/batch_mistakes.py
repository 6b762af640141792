"""Mistakes of a sampler or of dropout's seed: what the replicas may have trained on instead of their shards.

A shard is a replica's part of a global batch, as a list of micro-batches. Dropout masks derive from the array
"dropout_keys", which has a key for each example that depends on the seed, the step and the example.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from common.data.batch_plan import steps_per_epoch
from common.data.transforms.transformed_split import TransformedSplit
from common.diagnose.side_run import Shards, SideRun, split_batch
from common.training.planned_batches import find_batch


@dataclass(frozen=True)
class BatchMistake:
    """Shards that the replicas may have trained on by mistake.

    Attributes:
        cause: Name of the mistake as a cause in diagnosis.json.
        stage: Stage of the diagnosis that the cause belongs to: "batch" or "dropout".
        tensor: The part of the batch that is wrong.
        sentence: Description of the mistake; the side's name precedes it.
        shards: The wrong shards, one for each replica.
        weight: Weight of the wrong global batch, over which the loss is averaged.
    """

    cause: str
    stage: str
    tensor: str
    sentence: str
    shards: Shards
    weight: float


def list_batch_mistakes(run: SideRun, index: int) -> Iterator[BatchMistake]:
    """Yield the mistakes that are possible in a step of a run; `index` counts the steps of `run.batches` from 0."""
    batch, count = run.batches[index], run.shard_count
    epoch_length = steps_per_epoch(len(batch.split), run.config.train.global_batch_size)
    epoch, step_in_epoch = divmod(batch.step - 1, epoch_length)
    if epoch:
        ids, split = find_batch(run.config, batch.split, step_in_epoch + 1).ids, batch.split
        if isinstance(split, TransformedSplit):
            split = split.select_batch(epoch, batch.step, ids)
        repeated = replace(batch, ids=ids, split=split)
        sentence = (
            f"trains on the examples of step {step_in_epoch + 1} again: the data are not shuffled again in epoch "
            f"{epoch + 1} (set_epoch)"
        )
        shards = split_batch(repeated, count)
        yield BatchMistake("epoch_not_reshuffled", "batch", "ids", sentence, shards, repeated.weight)
    if batch.dropout_seed is None:
        return
    if batch.step > 1:
        sentence = "uses the dropout masks of step 1 again: the seed of its masks does not depend on the step"
        shards = split_batch(replace(batch, step=1), count)
        yield BatchMistake("same_masks_in_all_steps", "dropout", "masks", sentence, shards, batch.weight)
    if count > 1:
        sentence = "uses the same dropout masks on all ranks: the seed of its masks does not depend on the rank"
        shards = share_masks(split_batch(batch, count))
        yield BatchMistake("same_masks_on_all_ranks", "dropout", "masks", sentence, shards, batch.weight)


def share_masks(shards: Shards) -> Shards:
    """Return the shards with the dropout keys of the largest shard: the k-th example of each gets the k-th key."""
    largest = max(shards, key=lambda shard: sum(len(part["dropout_keys"]) for part in shard))
    return [
        [
            {**part, "dropout_keys": largest_part["dropout_keys"][: len(part["dropout_keys"])]}
            for largest_part, part in zip(largest, shard, strict=True)
        ]
        for shard in shards
    ]
