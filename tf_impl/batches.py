"""Shards of a global batch as tensors."""

import numpy as np
import tensorflow as tf

SIGNATURES = {  # of what to_tensors returns, by the kind of model
    "bert": {
        "input_ids": tf.TensorSpec([None, None], tf.int32),
        "token_type_ids": tf.TensorSpec([None, None], tf.int32),
        "attention_mask": tf.TensorSpec([None, None], tf.int32),
        "labels": tf.TensorSpec([None], tf.int32),
        "weights": tf.TensorSpec([None], tf.float64),
    },
    "convnet": {
        "images": tf.TensorSpec([None, None, None, None], tf.float32),
        "labels": tf.TensorSpec([None], tf.int32),
        "weights": tf.TensorSpec([None], tf.float64),
    },
}


def to_tensors(arrays: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    """The arrays of a shard, as they are. See common.data.batches."""
    return {name: tf.convert_to_tensor(array) for name, array in arrays.items()}
