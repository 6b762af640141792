"""Tests of the gradients that the slots of Keras's optimizers imply."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_impl.record.gradients import recover_gradients
from tf_impl.record.optimizer_facts import view_momentums


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adam(0.1, beta_1=0.8),
        keras.optimizers.AdamW(0.1, weight_decay=0.1),
        keras.optimizers.Lion(0.1),
        keras.optimizers.SGD(0.1, momentum=0.5, nesterov=True),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_the_slots_imply_the_gradient(optimizer: keras.optimizers.Optimizer) -> None:
    variable = keras.Variable([1.0, -2.0], name="w")
    gradients = [[0.5, -1.0], [2.0, 0.25]]
    before: dict[str, np.ndarray] = {}
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        after = view_momentums(optimizer, {"w": variable})
        recovered = recover_gradients(optimizer, before, after, rate=0.1)["w"]
        np.testing.assert_allclose(recovered, gradient, rtol=1e-5)
        before = {"w": after["w"].copy()}


def test_squares_imply_no_gradient() -> None:
    assert recover_gradients(keras.optimizers.RMSprop(0.1), {}, {"w": np.ones(2)}, rate=0.1) == {}
