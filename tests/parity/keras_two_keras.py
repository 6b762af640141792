"""A Keras 2 model whose `call` does not take the mode, which Keras 2 passes to its dropout all the same."""

import tensorflow as tf
import tf_keras
from tf_keras import layers


class Regression(tf_keras.Model):
    """A model that maps numbers [n, 9] and sex [n], which is 0 or 1, to the progression of the disease [n, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.dropout = layers.Dense(16, activation="tanh"), layers.Dropout(0.1)
        self.result = layers.Dense(1)

    def call(self, numbers: tf.Tensor, sex: tf.Tensor) -> tf.Tensor:
        x = tf.concat([numbers, tf.cast(sex, numbers.dtype)[:, None]], 1)
        return self.result(self.dropout(self.hidden(x)))


def build() -> tf_keras.Model:
    return Regression()
