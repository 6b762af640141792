"""Tests of corrected convolutions against those of Keras, in a TensorFlow process."""

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
COMPARE_GROUPS = """
import keras
import numpy as np
import tensorflow as tf
from tf_impl.convolution import patch_grouped_convolutions

keras.config.set_floatx("float64")
patch_grouped_convolutions()
generator = np.random.default_rng(0)

def convolve_all_channels(layer, x):  # with zeros in place of the weights that a group does not have
    inputs = layer.kernel.shape[-2]
    parts = tf.split(layer.kernel.value, layer.groups, axis=-1)
    window = [[0, 0]] * layer.rank
    rows = [[number * inputs, (layer.groups - 1 - number) * inputs] for number in range(layer.groups)]
    kernel = tf.concat([tf.pad(part, [*window, row, [0, 0]]) for part, row in zip(parts, rows)], axis=-1)
    last = tf.transpose(x, [0, 2, 3, 1]) if layer.data_format == "channels_first" else x
    y = tf.nn.convolution(last, kernel, layer.strides, layer.padding.upper(), dilations=layer.dilation_rate)
    return tf.transpose(y, [0, 3, 1, 2]) if layer.data_format == "channels_first" else y

def compute(function, x, kernel):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
        loss = tf.reduce_sum(tf.square(y))
    return [y, *tape.gradient(loss, [x, kernel])]

for layer, shape in (
    (keras.layers.Conv2D(6, 3, groups=6, padding="same"), (7, 8, 6)),
    (keras.layers.Conv2D(12, 3, 2, groups=6, padding="same"), (7, 8, 6)),
    (keras.layers.Conv2D(6, 2, (1, 2), groups=6), (7, 8, 6)),
    (keras.layers.Conv2D(6, 3, groups=6, dilation_rate=2), (7, 8, 6)),
    (keras.layers.Conv2D(4, 3, groups=2), (7, 8, 6)),
    (keras.layers.Conv2D(4, 3, groups=2, data_format="channels_first"), (6, 7, 8)),
    (keras.layers.Conv1D(6, 3, groups=3), (7, 6)),
):
    x = tf.constant(generator.normal(size=[3, *shape]))
    layer.build(x.shape)
    expected = compute(lambda x: convolve_all_channels(layer, x), x, layer.kernel.value)
    for array, expected_array in zip(compute(layer, x, layer.kernel.value), expected, strict=True):
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


def test_corrected_convolutions_compute_what_keras_computes(python: Python) -> None:
    """Compare values and gradients, of groups too, for any number of examples.

    Groups have the values of all channels with zeros between the groups. Without the correction, strides=2 crashes the
    process on CPUs whose oneDNN has the fault.
    """
    python(COMPARE + COMPARE_GROUPS + TRAIN)
