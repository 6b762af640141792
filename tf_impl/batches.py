"""Shards of a global batch as tensors."""

import numpy as np
import tensorflow as tf

from common.data.batches import GlobalBatch, Split


def to_tensors(arrays: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    """The arrays of a shard, as they are. See common.data.batches."""
    return {name: tf.convert_to_tensor(array) for name, array in arrays.items()}


def signature(split: Split) -> dict[str, tf.TensorSpec]:
    """What a compiled step accepts: the arrays of this split's shards, with every axis of any length."""
    arrays = GlobalBatch(1, np.zeros(1, np.int64), split).shard(0, 1)
    return {name: tf.TensorSpec([None] * array.ndim, array.dtype) for name, array in arrays.items()}
