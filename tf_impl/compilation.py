"""Compilation with XLA (`train.compile`): one graph for each input shape. Shapes are rounded up, so that few occur."""

import keras
import tensorflow as tf

from common.data.batches import Arrays
from common.data.bucketing import pad_to_bucket

_input_shapes: set[tuple[tuple[int, ...], ...]] = set()  # shapes of the arrays of all micro-batches so far


def compile_model(model: keras.Model) -> None:
    """Compile the forward and backward pass of a model when the model is first called with inputs of a new shape."""
    model.call = tf.function(model.call, jit_compile=True, autograph=False)


def round_up_shapes(arrays: Arrays) -> Arrays:
    """Pad the arrays of a micro-batch to one of few shapes, and count the shape as compiled."""
    padded = pad_to_bucket(arrays)
    _input_shapes.add(tuple(array.shape for array in padded.values()))
    return padded


def report_compilations() -> dict[str, int | float]:
    """Return the number of input shapes for which this process has compiled the model, for summary.json."""
    return {"compilations": len(_input_shapes)}
