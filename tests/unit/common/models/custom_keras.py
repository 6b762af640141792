"""Keras models as users write them, correct and wrong ones. They take x [n, 5] and return logits of 3 classes."""

from typing import Any

import keras
from keras import layers


class Late(keras.Model):
    """A model that creates its layer in the first call, which Keras forbids."""

    def call(self, x: Any) -> Any:
        if not hasattr(self, "out"):
            self.out = layers.Dense(3)
        return self.out(x)


class Masked(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(4, activation="relu"), layers.Dense(3)

    def call(self, x: Any, mask: Any) -> Any:
        return self.out(self.hidden(x * keras.ops.cast(mask, x.dtype)))


def plain(activation: str = "relu") -> keras.Model:
    return keras.Sequential([keras.Input((5,)), layers.Dense(4, activation=activation), layers.Dense(3)])


def tanh() -> keras.Model:
    return plain("tanh")


def late() -> keras.Model:
    return Late()


def masked() -> keras.Model:
    return Masked()
