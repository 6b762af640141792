"""Pairs of outputs of a PyTorch and a Keras model, their layouts, and their differences.

An output that has channels has them in the second axis in PyTorch, and in the last in Keras.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.errors import UserError
from common.map.array_differences import move_channels_last, relative_difference
from common.map.description import Arrays, ComputedPass


@dataclass(frozen=True)
class OutputPair:
    """The names of an output in PyTorch and in Keras."""

    torch: str
    keras: str
    channels_move: bool  # whether Keras's output has its channels last, and PyTorch's has them second

    def to_keras(self, array: np.ndarray) -> np.ndarray:
        """Convert PyTorch's array to Keras's layout."""
        return move_channels_last(array) if self.channels_move else array


def pair_outputs(torch_outputs: Arrays, keras_outputs: Arrays, has_channels: bool) -> tuple[list[OutputPair], str]:
    """Pair outputs by name if both models use the same names, otherwise in their order.

    Args:
        torch_outputs: The outputs of PyTorch's model by name.
        keras_outputs: The outputs of Keras's model by name.
        has_channels: Whether an input of the models has channels, so that outputs may have channels too.

    Returns:
        The pairs, and a sentence that says why the outputs cannot be paired; an empty sentence if they can.

    Raises:
        UserError: An output has the same shape with its channels second and last, so that its layout is not known.
    """
    if len(torch_outputs) != len(keras_outputs):
        return [], f"PyTorch's model returns {', '.join(torch_outputs)}, Keras's {', '.join(keras_outputs)}"
    keras_names = torch_outputs if torch_outputs.keys() == keras_outputs.keys() else keras_outputs
    pairs = []
    for torch_name, keras_name in zip(torch_outputs, keras_names, strict=True):
        a, b = torch_outputs[torch_name], keras_outputs[keras_name]
        if _is_floating(a) != _is_floating(b):
            return [], f"{torch_name} is {a.dtype} in PyTorch, {b.dtype} in Keras"
        may_move = a.ndim >= 3 and move_channels_last(a).shape == b.shape
        if (
            may_move
            and a.shape == b.shape
            and has_channels
            and not np.array_equal(move_channels_last(a), a, equal_nan=True)
        ):
            raise UserError(
                f"{torch_name}: the axes of the output have equal sizes, so that its channels may be second or last; "
                "choose inputs whose sizes differ"
            )
        if not may_move and a.shape != b.shape:
            return [], f"{torch_name} is {a.shape} in PyTorch, {b.shape} in Keras"
        pairs.append(OutputPair(torch_name, keras_name, a.shape != b.shape))
    return pairs, ""


def draw_projections(
    pairs: Sequence[OutputPair], torch_outputs: Arrays, stream: np.random.Generator
) -> tuple[Arrays, Arrays]:
    """Draw a random factor for each element of the floating-point outputs: the projections of the outputs.

    Both models compute the gradients of one scalar: the sum of all elements times their factors.

    Returns:
        The factors in PyTorch's layout by PyTorch's names, and the same factors in Keras's layout by Keras's names.
    """
    torch_projections, keras_projections = {}, {}
    for pair in pairs:
        output = torch_outputs[pair.torch]
        if _is_floating(output):
            factors = np.asarray(stream.standard_normal(output.shape))
            torch_projections[pair.torch], keras_projections[pair.keras] = factors, pair.to_keras(factors)
    return torch_projections, keras_projections


def largest_difference(pairs: Sequence[OutputPair], torch_pass: ComputedPass, keras_pass: ComputedPass) -> float:
    """Return the largest difference of paired outputs, relative to the output's norm; infinity if integers differ."""
    return max(
        _compare_output(pair.to_keras(torch_pass.outputs[pair.torch]), keras_pass.outputs[pair.keras]) for pair in pairs
    )


def _compare_output(a: np.ndarray, b: np.ndarray) -> float:
    if _is_floating(a):
        return relative_difference(a, b)
    return 0 if np.array_equal(a, b) else np.inf


def _is_floating(array: np.ndarray) -> bool:
    return array.dtype.kind == "f"
