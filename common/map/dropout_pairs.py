"""Pairs of dropout or noise layers in PyTorch and Keras, which draw the same random numbers in training.

If the channels of their inputs are in different axes, a pair has the layout that says which elements correspond.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.errors import UserError
from common.map.array_differences import move_channels_last, relative_difference
from common.map.description import ModelDescription
from common.map.noise import Noise

SAME_INPUT = 1e-6  # largest relative difference of equal inputs; inputs in another layout differ far more
Shape = tuple[int, ...]


@dataclass(frozen=True)
class ChannelLayout:
    """The layout of an input whose channels come first in PyTorch and last in Keras.

    Attributes:
        received: The shape of one example that PyTorch's layer receives.
        channels_first: The shape of that example with channels in the first axis, before the model flattened it.
    """

    received: Shape
    channels_first: Shape


@dataclass(frozen=True)
class DropoutPair:
    """The names of a dropout or noise layer in PyTorch and of its counterpart in Keras, and what both do."""

    torch: str
    keras: str
    noise: Noise
    layout: ChannelLayout | None  # None if both receive the elements in the same order


def pair_dropouts(
    torch_description: ModelDescription,
    keras_description: ModelDescription,
    torch_inputs: Mapping[str, np.ndarray],
    keras_inputs: Mapping[str, np.ndarray],
    can_differ: bool = False,
) -> list[DropoutPair]:
    """Pair the dropout layers in the order of execution.

    Args:
        torch_description: The description of PyTorch's model.
        keras_description: The description of Keras's model.
        torch_inputs: The arrays that PyTorch's dropout layers receive, by path.
        keras_inputs: The arrays that Keras's dropout layers receive, by path.
        can_differ: Whether the layers may receive different values, if the shapes show which elements correspond.

    Raises:
        UserError: The models have different dropout layers, or the layers receive different arrays.
    """
    torch_dropouts, keras_dropouts = torch_description.dropouts, keras_description.dropouts
    both = list(zip(torch_dropouts.items(), keras_dropouts.items(), strict=False))
    if len(torch_dropouts) != len(keras_dropouts) or not all(a.noise.is_like(b.noise) for (_, a), (_, b) in both):
        raise UserError(f"PyTorch drops at {_list_rates(torch_description)}, Keras at {_list_rates(keras_description)}")
    pairs = []
    for (torch_path, torch_layer), (keras_path, keras_layer) in both:
        if torch_layer.calls != keras_layer.calls:
            raise UserError(
                f"a pass calls {torch_path} (PyTorch) {torch_layer.calls} times, and {keras_path} (Keras) "
                f"{keras_layer.calls} times"
            )
        torch_input, keras_input = torch_inputs[torch_path], keras_inputs[keras_path]
        unit, layout = torch_layer.noise.unit, None
        if unit == "example":  # one number for an example: the order of its elements does not matter
            torch_input, keras_input = _sort_elements(torch_input), _sort_elements(keras_input)
        is_moved = unit == "channel" and not torch_description.is_keras
        if is_moved or not _are_equal(torch_input, keras_input):
            layout = _find_layout(torch_input, keras_input, torch_layer.unflattened_shape, can_differ)
            can_correspond = can_differ and unit != "channel" and torch_layer.unflattened_shape is None
            if layout is None and not (can_correspond and _are_alike(torch_input.shape, keras_input.shape)):
                raise UserError(f"{torch_path} (PyTorch) and {keras_path} (Keras) drop elements of different inputs")
        pairs.append(DropoutPair(torch_layer.name, keras_layer.name, torch_layer.noise, layout))
    return pairs


def _list_rates(description: ModelDescription) -> str:
    return ", ".join(f"{path} ({layer.noise})" for path, layer in description.dropouts.items()) or "no layer"


def _sort_elements(array: np.ndarray) -> np.ndarray:
    """Return the sorted elements of each example, [n, elements]."""
    return np.sort(array.reshape(len(array), -1))


def _are_alike(torch: Shape, keras: Shape) -> bool:
    """Check whether two shapes are equal, and show that the channels are in the same axis: their sizes differ."""
    return torch == keras and (len(torch) < 3 or len({*torch[1:]}) > 1)


def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and relative_difference(a, b) < SAME_INPUT


def _find_layout(
    torch_input: np.ndarray, keras_input: np.ndarray, unflattened_shape: Shape | None, can_differ: bool
) -> ChannelLayout | None:
    """Return the layout in which both inputs are equal once PyTorch's channels are moved last; None if there is none.

    If the inputs may have different values, only the shapes decide: PyTorch's shape becomes Keras's by the move.

    Args:
        torch_input: The input of PyTorch's layer.
        keras_input: The input of Keras's layer.
        unflattened_shape: The shape of PyTorch's examples before the model flattened them; None: not flattened.
        can_differ: Whether the inputs may have different values.
    """
    if torch_input.size != keras_input.size or len(torch_input) != len(keras_input):
        return None
    for shape in (torch_input.shape[1:], unflattened_shape):
        if shape is None or len(shape) <= 1:
            continue
        moved = move_channels_last(torch_input.reshape(-1, *shape))
        has_moved_shape = moved.shape == keras_input.shape != torch_input.shape
        if (can_differ and has_moved_shape) or _are_equal(moved.reshape(keras_input.shape), keras_input):
            return ChannelLayout(torch_input.shape[1:], tuple(shape))
    return None
