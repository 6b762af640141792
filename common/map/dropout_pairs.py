"""Which dropout layer of Keras is which of PyTorch, and how the elements that they receive correspond."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import UserError
from common.map.array_differences import move_channels_last, relative_difference
from common.map.description import ModelDescription

SAME = 1e-6  # relative; what a layer receives in another layout differs far more


@dataclass(frozen=True)
class ChannelLayout:
    """Where PyTorch has channels first and Keras has them last.

    received: the shape of an example that PyTorch's layer receives. channels_first: that shape before it was flattened.
    """

    received: tuple[int, ...]
    channels_first: tuple[int, ...]


@dataclass(frozen=True)
class DropoutPair:
    """torch, keras: the names of the layers. layout: None where both receive the elements in one order."""

    torch: str
    keras: str
    layout: ChannelLayout | None


Received = Mapping[str, np.ndarray]  # by the path of the layer


def pair_dropouts(
    ours: ModelDescription, theirs: ModelDescription, torch: Received, keras: Received
) -> list[DropoutPair]:
    """Pair the dropout layers in the order of execution. Raises UserError where they are not the same."""
    if [each.rate for each in ours.dropouts.values()] != [each.rate for each in theirs.dropouts.values()]:
        listed = [", ".join(f"{path} ({each.rate:g})" for path, each in one.dropouts.items()) for one in (ours, theirs)]
        raise UserError(f"PyTorch drops at {listed[0] or 'no layer'}, Keras at {listed[1] or 'no layer'}")
    pairs = []
    for (path, mine), (other, yours) in zip(ours.dropouts.items(), theirs.dropouts.items(), strict=True):
        found = _layout(torch[path], keras[other], mine.flattened)
        if found is False:
            raise UserError(f"{path} (PyTorch) and {other} (Keras) drop elements of different inputs")
        pairs.append(DropoutPair(mine.name, yours.name, found))
    return pairs


def _layout(torch: np.ndarray, keras: np.ndarray, flattened: tuple[int, ...] | None) -> Any:
    """A ChannelLayout, None where there is no difference; False where the arrays are not the same in any."""
    if torch.size != keras.size or len(torch) != len(keras):
        return False
    if torch.shape == keras.shape and relative_difference(torch, keras) < SAME:
        return None
    shapes = [torch.shape[1:], *([flattened] if flattened is not None else [])]
    for shape in shapes:
        moved = move_channels_last(torch.reshape(-1, *shape)) if len(shape) > 1 else torch
        if len(shape) > 1 and relative_difference(moved.reshape(keras.shape), keras) < SAME:
            return ChannelLayout(torch.shape[1:], tuple(shape))
    return False
