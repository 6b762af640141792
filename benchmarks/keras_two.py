"""The Keras halves of the examples in Keras 2: the same files, with the package tf_keras as `keras`.

Keras 2 has no `keras.ops`; TensorFlow's functions take their place. KerasHub needs Keras 3, so `hf` is not here.
"""

import importlib.util
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import tensorflow as tf
import tf_keras

OPS = SimpleNamespace(
    arange=tf.range,
    cast=tf.cast,
    gelu=tf.nn.gelu,
    reshape=tf.reshape,
    shape=tf.shape,
    softmax=tf.nn.softmax,
    sum=tf.reduce_sum,
    transpose=tf.transpose,
    where=tf.where,
)


def build(example: str, **arguments: object) -> tf_keras.Model:
    """Build the Keras half of an example with Keras 2.

    Args:
        example: The name of the example, such as "lstm".
        arguments: The arguments of its factory.
    """
    spec = importlib.util.find_spec(f"examples.{example}.model_keras")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {"keras": _imitate_keras_three()}):
        spec.loader.exec_module(module)
    return module.build(**arguments)


def _imitate_keras_three() -> ModuleType:
    """Return a module with the names of Keras 3 that the examples use, and the classes of Keras 2."""
    keras, layers = ModuleType("keras"), ModuleType("keras.layers")
    vars(layers).update(vars(tf_keras.layers), LSTM=_make_lstm)
    vars(keras).update(vars(tf_keras), layers=layers, ops=OPS, KerasTensor=tf.Tensor)  # an annotation of Keras 3
    return keras


def _make_lstm(units: int, *, use_cudnn: bool, **settings: object) -> tf_keras.layers.Layer:
    """Make an LSTM. Keras 2 chooses itself whether to use cuDNN, which a CPU never does."""
    return tf_keras.layers.LSTM(units, **settings)


build_resnet, build_lstm, build_gpt, build_tabular = (
    partial(build, name) for name in ("resnet", "lstm", "gpt", "tabular")
)
