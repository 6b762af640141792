"""The outputs of two models: which belong together, in which layout, and by how much they differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.errors import UserError
from common.map.array_differences import move_channels_last, relative_difference
from common.map.description import ComputedPass

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class OutputPair:
    """An output by its names in PyTorch and in Keras. moved: whether Keras's has its channels last."""

    torch: str
    keras: str
    moved: bool

    def to_keras(self, array: np.ndarray) -> np.ndarray:
        """PyTorch's array in Keras's layout."""
        return move_channels_last(array) if self.moved else array


def pair_outputs(torch: Arrays, keras: Arrays, channels: bool) -> tuple[list[OutputPair], str]:
    """Those of equal names, else in their order; and in words why they cannot be paired, empty where they can.

    channels: whether inputs have channels. Raises UserError for an output of which two layouts are possible.
    """
    if len(torch) != len(keras):
        return [], f"PyTorch's model returns {', '.join(torch)}, Keras's {', '.join(keras)}"
    paired = []
    for name, other in zip(torch, torch if torch.keys() == keras.keys() else keras, strict=True):
        a, b = torch[name], keras[other]
        if _of_floats(a) != _of_floats(b):
            return [], f"{name} is {a.dtype} in PyTorch, {b.dtype} in Keras"
        moves = a.ndim >= 3 and move_channels_last(a).shape == b.shape
        if moves and a.shape == b.shape and channels and not np.array_equal(move_channels_last(a), a, equal_nan=True):
            raise UserError(
                f"{name}: the axes of the output have equal sizes, so that its channels may be second or last; "
                "give inputs whose sizes differ"
            )
        if not moves and a.shape != b.shape:
            return [], f"{name} is {a.shape} in PyTorch, {b.shape} in Keras"
        paired.append(OutputPair(name, other, a.shape != b.shape))
    return paired, ""


def draw_projections(
    outputs: Sequence[OutputPair], torch: Arrays, stream: np.random.Generator
) -> tuple[Arrays, Arrays]:
    """Random factors of PyTorch's outputs of floats, and the same in Keras's layout."""
    drawn = {
        each: np.asarray(stream.standard_normal(torch[each.torch].shape))
        for each in outputs
        if _of_floats(torch[each.torch])
    }
    return (
        {each.torch: array for each, array in drawn.items()},
        {each.keras: each.to_keras(array) for each, array in drawn.items()},
    )


def largest_difference(outputs: Sequence[OutputPair], torch: ComputedPass, keras: ComputedPass) -> float:
    """Relative to the norm of the output; infinite where others than floats are not equal."""
    return max(_difference(each.to_keras(torch.outputs[each.torch]), keras.outputs[each.keras]) for each in outputs)


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    if _of_floats(a):
        return relative_difference(a, b)
    return 0 if np.array_equal(a, b) else np.inf


def _of_floats(array: np.ndarray) -> bool:
    return array.dtype.kind == "f"
