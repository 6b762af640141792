"""Short draws of random numbers for large initial weights, if only the proof of common.map uses these weights.

The draws of a large model take longer than its forward pass. The proof needs weights without a structure that a wrong
map would keep, but not independent numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

COUNT = 1_048_573  # the most numbers that are drawn for an array; a prime, so that all rows of a matrix differ
DRAWS = ("normal_", "uniform_")  # methods of tensors, which all initializers call


def _repeat(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that fills a tensor with repeated numbers."""

    def draw_repeated(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if tensor.numel() <= COUNT or not tensor.is_contiguous():
            return draw(tensor, *args, **kwargs)
        numbers, *others = tensor.view(-1).split(COUNT)
        draw(numbers, *args, **kwargs)
        for part in others:
            part.copy_(numbers[: len(part)])
        return tensor

    return draw_repeated


@contextmanager
def repeat_draws() -> Iterator[None]:
    """Enter a context in which the initial weights of a model repeat after COUNT numbers."""
    for name in DRAWS:
        setattr(torch.Tensor, name, _repeat(getattr(torch.Tensor, name)))
    try:
        yield
    finally:
        for name in DRAWS:
            delattr(torch.Tensor, name)  # the method of its base class remains
