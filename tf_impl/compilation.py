"""`train.compile`: XLA compiles the model once for each shape of its inputs, which are rounded up to few shapes."""

from typing import Any

import keras
import tensorflow as tf

from common.data.batches import Arrays
from common.data.bucketing import pad_to_bucket

_shapes: set[tuple[tuple[int, ...], ...]] = set()  # of the inputs so far


def compile_model(model: keras.Model) -> None:
    """Have the model compiled, forward and backward, when it is first called with inputs of a shape."""
    model.call = tf.function(model.call, jit_compile=True, autograph=False)


def round_up_shapes(part: Arrays) -> Arrays:
    """A micro-batch, rounded up, for a compiled model."""
    part = pad_to_bucket(part)
    _shapes.add(tuple(array.shape for array in part.values()))
    return part


def report_compilations() -> dict[str, Any]:
    """What summary.json says of them: for how many shapes the chief has compiled the model."""
    return {"compilations": len(_shapes)}
