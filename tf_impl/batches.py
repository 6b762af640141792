"""Shards of a global batch as tensors."""

import tensorflow as tf

from common.config.schema import Config
from common.data.batches import Arrays, Split
from common.training.planned_batches import find_batch
from tf_impl.compilation import round_up_shapes


def to_tensors(shard: list[Arrays], compiled: bool = False) -> list[dict[str, tf.Tensor]]:
    """The micro-batches of a shard, as they are, or in few shapes for a compiled model. See common.data.batches."""
    if compiled:
        shard = [round_up_shapes(part) for part in shard]
    return [{name: tf.convert_to_tensor(array) for name, array in part.items()} for part in shard]


def build_input_signature(config: Config, split: Split) -> list[dict[str, tf.TensorSpec]]:
    """What a compiled step accepts: the micro-batches of this split's shards, with every axis of any length."""
    shard = find_batch(config, split, 1).shard(0, 1)
    return [{name: tf.TensorSpec([None] * array.ndim, array.dtype) for name, array in part.items()} for part in shard]


def select_replica_shard(shards: list[list[dict[str, tf.Tensor]]]) -> list[dict[str, tf.Tensor]]:
    """In a function that a strategy runs on every replica: this replica's of all shards."""
    return shards[int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))]
