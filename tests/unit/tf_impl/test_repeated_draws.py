"""Short draws of random numbers for large initial weights."""

import keras
import numpy as np
from keras.src.initializers import random_initializers

from tf_impl.repeated_draws import COUNT, repeat_draws


def test_only_large_weights_repeat() -> None:
    expected = keras.initializers.GlorotUniform(seed=1)((20, 30))
    module = random_initializers.random
    with repeat_draws():
        small = keras.initializers.GlorotUniform(seed=1)((20, 30))
        large = np.asarray(keras.initializers.RandomNormal(stddev=1.0, seed=1)((COUNT // 100, 250)))
    assert np.array_equal(small, expected)
    numbers = large.ravel()
    assert np.array_equal(numbers[COUNT:], numbers[:-COUNT])
    assert abs(numbers.std() - 1) < 0.01
    assert len(np.unique(large[:, 0])) > 0.99 * len(large)  # no two rows are the same
    assert random_initializers.random is module
