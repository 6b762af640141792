"""Short draws of random numbers for large initial weights, if only the proof of common.map uses these weights.

The draws of a large model take longer than its forward pass. The proof needs weights without a structure that a wrong
map would keep, but not independent numbers.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf
from keras.src.initializers import random_initializers

COUNT = 1_048_573  # the most numbers that are drawn for an array; a prime, so that all rows of a matrix differ
DRAWS = ("normal", "truncated_normal", "uniform")


class _RepeatedDraws:
    """Keras's module of random functions, whose draws repeat after COUNT numbers."""

    def __init__(self, module: object) -> None:
        self._module = module

    def __getattr__(self, name: str) -> object:
        member = getattr(self._module, name)
        return _repeat(member) if name in DRAWS else member


def _repeat(draw: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Return a function that draws an array of repeated numbers."""

    def draw_repeated(shape: tuple[int, ...], *args: object, **kwargs: object) -> tf.Tensor:
        size = math.prod(shape)
        if size <= COUNT:
            return draw(shape, *args, **kwargs)
        numbers = draw((COUNT,), *args, **kwargs)
        rest = numbers[: size % COUNT]
        return tf.reshape(tf.concat([numbers] * (size // COUNT) + [rest], 0), shape)

    return draw_repeated


@contextmanager
def repeat_draws() -> Iterator[None]:
    """Enter a context in which the initial weights of a model repeat after COUNT numbers."""
    module = random_initializers.random
    random_initializers.random = _RepeatedDraws(module)
    try:
        yield
    finally:
        random_initializers.random = module
