"""Tests of corrected 1x1 convolutions with strides against those of Keras, in TensorFlow processes."""

import pytest

from tests.conftest import Python

pytestmark = pytest.mark.slow

COMPARE = """
import keras
import numpy as np
import tensorflow as tf
from tf_impl.convolution import patch_strided_convolutions

keras.config.set_floatx("float64")
generator = np.random.default_rng(0)

def compute(layer, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.square(layer(x)))
    return [layer(x), *tape.gradient(loss, [x, layer.kernel.value])]

LAYERS = [
    keras.layers.Conv1D(4, 1, 3),
    keras.layers.Conv2D(4, 1, 2),
    keras.layers.Conv2D(4, 1, (1, 2), padding="same"),
    keras.layers.Conv2D(4, 1, 2, groups=1, use_bias=False),
    keras.layers.Conv2D(4, (1, 3), 2),
    keras.layers.Conv2D(4, 1, 1),
    keras.layers.Conv3D(4, 1, (2, 1, 3)),  # with padding="same", TensorFlow's own result is wrong in float64
]
inputs = [tf.constant(generator.normal(size=[3, *[7, 8, 9][: layer.rank], 5])) for layer in LAYERS]
expected = [compute(layer, x) for layer, x in zip(LAYERS, inputs)]
patch_strided_convolutions()
for layer, x, expected_arrays in zip(LAYERS, inputs, expected):
    for array, expected_array in zip(compute(layer, x), expected_arrays, strict=True):
        assert array.shape == expected_array.shape
        np.testing.assert_allclose(array, expected_array, rtol=1e-12, atol=1e-12)
"""
TRAIN = """
import numpy as np
import tensorflow as tf
from keras import ops
from tf_impl.convolution import patch_strided_convolutions

patch_strided_convolutions()
for strides in (1, 2):
    for examples in (3, 5, 7, 11):
        x, kernel = tf.random.normal([examples, 16, 16, 8]), tf.random.normal([1, 1, 8, 16])
        for _ in range(20):
            with tf.GradientTape() as tape:
                tape.watch(kernel)
                y = ops.conv(x, kernel, strides)
            expected = tf.einsum("nhwi,nhwo->io", x[:, ::strides, ::strides], tf.ones_like(y))
            np.testing.assert_allclose(tape.gradient(y, kernel)[0, 0], expected, rtol=1e-3, atol=1e-3)
            tf.random.normal([1000])
"""


def test_values_and_gradients_are_those_of_keras(python: Python) -> None:
    python(COMPARE)


def test_gradients_of_any_number_of_examples_leave_memory_intact(python: Python) -> None:
    """Without the correction, strides=2 crashes the process on CPUs whose oneDNN has the fault."""
    python(TRAIN)
