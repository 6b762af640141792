"""Shards of a global batch as tensors."""

import tensorflow as tf

from common.config.schema import Config
from common.data.batches import Arrays, Split
from common.training.planned_batches import find_batch
from tf_impl.compilation import round_up_shapes


def to_tensors(shard: list[Arrays], compiled: bool = False) -> list[dict[str, tf.Tensor]]:
    """Convert the micro-batches of a shard to tensors.

    Args:
        shard: The arrays of each micro-batch by name, as `GlobalBatch.shard` returns them.
        compiled: Whether XLA compiles the model; shapes are then rounded up, so that there are few of them.
    """
    if compiled:
        shard = [round_up_shapes(arrays) for arrays in shard]
    return [{name: tf.convert_to_tensor(array) for name, array in arrays.items()} for arrays in shard]


def build_input_signature(config: Config, split: Split) -> list[dict[str, tf.TensorSpec]]:
    """Return the `input_signature` of a tf.function that takes a shard of this split; every axis has any length."""
    # The shard of step 1 stands for all: the names and types of the arrays are always the same.
    shard = find_batch(config, split, number=1).shard(rank=0, world_size=1)
    return [
        {name: tf.TensorSpec([None] * array.ndim, array.dtype) for name, array in arrays.items()} for arrays in shard
    ]


def select_replica_shard(shards: list[list[dict[str, tf.Tensor]]]) -> list[dict[str, tf.Tensor]]:
    """Return the shard of the current replica. Call it in a function that `tf.distribute` runs on every replica."""
    return shards[int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))]
