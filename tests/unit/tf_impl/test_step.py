"""Tests of the parts of a step that its strategies share. TensorFlow runs in a separate process."""

import json

import pytest

from tests.conftest import Python

pytestmark = pytest.mark.slow

BACKWARD = """
import json
import keras
import tensorflow as tf
from types import SimpleNamespace
from tf_impl.step import backward

x = keras.Input([3], name="x")
hidden = keras.layers.Dense(4, name="hidden")(x)
logits, auxiliary = (keras.layers.Dense(2, name=name)(hidden) for name in ("logits", "auxiliary"))
inner = keras.Model(x, [logits, auxiliary])
model = lambda inputs, training: inner(inputs["x"], training=training)[0]
task = SimpleNamespace(gather=None, losses=lambda outputs, labels: tf.reduce_sum(outputs**2, 1))
batch = {"x": tf.ones([2, 3]), "labels": tf.zeros([2]), "weights": tf.ones([2])}
parameters = [variable.value for variable in inner.trainable_variables]
sums = []
for shard in ([batch], [batch, batch]):
    _, gradients = backward(model, task, shard, tf.constant(2.0), parameters)
    sums.append([float(tf.reduce_sum(tf.abs(gradient))) for gradient in gradients])
print(json.dumps([[variable.path.split("/")[0] for variable in inner.trainable_variables], *sums]))
"""


def test_parameters_that_the_loss_does_not_depend_on_get_zeros(keras_python: Python) -> None:
    """Compute the gradients of one micro-batch, and of several."""
    layers, *gradient_sums = json.loads(keras_python(BACKWARD))
    for sums in gradient_sums:
        assert [layer for layer, total in zip(layers, sums, strict=True) if total == 0] == ["auxiliary"] * 2
