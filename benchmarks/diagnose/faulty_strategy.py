"""A faulty strategy: its replicas run one after the other in one process, with a fault in batches or updates."""

from dataclasses import dataclass, replace
from typing import ClassVar

from common.config.keys import RUN, key
from common.config.schema import Config
from common.config.strategies import STRATEGIES, StrategySettings
from common.data.batch_plan import steps_per_epoch
from common.data.batches import Arrays, GlobalBatch
from common.training.planned_batches import find_batch


@dataclass(frozen=True)
class FaultyStrategySettings(StrategySettings):
    """Settings of the faulty strategy.

    Attributes:
        fault: A fault of faulty_strategy_torch.py and faulty_strategy_tf.py; "none" is a correct strategy.
    """

    sides: ClassVar[dict[str, str]] = {
        "torch": "benchmarks.diagnose.faulty_strategy_torch:Faulty",
        "tf": "benchmarks.diagnose.faulty_strategy_tf:Faulty",
    }

    fault: str = key(RUN)


STRATEGIES["faulty"] = FaultyStrategySettings


def take_shard(batch: GlobalBatch, rank: int, config: Config, fault: str) -> list[Arrays]:
    """Return the shard of a batch that a replica trains on, with faults of samplers and dropout seeds."""
    world_size = config.strategy.world_size
    if fault == "set_epoch":  # every epoch has the order of the first one, as if set_epoch had not been called
        step = (batch.step - 1) % steps_per_epoch(len(batch.split), config.train.global_batch_size) + 1
        batch = replace(batch, ids=find_batch(config, batch.split, step).ids)
    if fault == "mask_without_step":
        batch = replace(batch, step=1)
    shard = batch.shard(rank, world_size)
    if fault == "mask_without_rank":
        keys_of_ranks = [batch.shard(other, world_size)[0]["dropout_keys"] for other in range(world_size)]
        keys = max(keys_of_ranks, key=len)  # every rank takes its keys, which seed the masks, from the same list
        shard = [{**part, "dropout_keys": keys[: len(part["dropout_keys"])]} for part in shard]
    return shard
