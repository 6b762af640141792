"""The padding before the first element of a convolution's input, recovered from the convolution's output.

A transposed convolution crops its output instead.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close
from common.map.array_differences import has_strides

MOST_OFFSETS = 10_000  # largest number of offsets that are tried
MOST_CROPPED = 3  # largest difference of the sides, in elements, in how a transposed convolution crops an axis

CORNER_SIZE = 8  # elements along each axis, which are compared first

Offsets = tuple[int, ...]  # index in the input of the first window's first element, for each axis of the window


@dataclass(frozen=True)
class Convolution:
    """A convolution, with its channels in the second axis.

    Attributes:
        x: Input [n, channels, ...].
        weight: Kernel [outputs, channels / groups, ...].
        bias: Bias [outputs].
        stride: Step of the window, for each of its axes.
        dilation: Distance of the window's elements, for each of its axes.
    """

    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    stride: Offsets
    dilation: Offsets

    def compute_output(self, window_index: Offsets, offsets: Offsets) -> np.ndarray:
        """Return the outputs [n, outputs] of one window if the first window begins at these offsets; < 0 is padding."""
        window = self.x
        for axis, (index, start, stride, dilation) in enumerate(
            zip(window_index, offsets, self.stride, self.dilation, strict=True), 2
        ):
            indices = index * stride + start + dilation * np.arange(self.weight.shape[axis])
            is_inside = (indices >= 0) & (indices < self.x.shape[axis])
            window = np.take(window, np.clip(indices, 0, self.x.shape[axis] - 1), axis)
            window = window * is_inside.reshape([-1 if other == axis else 1 for other in range(window.ndim)])
        groups = self.x.shape[1] // self.weight.shape[1]
        windows = window.reshape(len(window), groups, -1)
        kernels = self.weight.reshape(groups, -1, windows.shape[2])
        return np.einsum("ngi,goi->ngo", windows, kernels).reshape(len(window), -1) + self.bias

    def find_offsets(self, result: np.ndarray) -> Offsets | None:
        """Return the offsets with which the result [n, outputs, ...] is computed, or None if there are none."""
        window_index = tuple(size // 2 for size in result.shape[2:])
        expected = result[(slice(None), slice(None), *window_index)]
        first_example = replace(self, x=self.x[:1])  # rejects most offsets
        for offsets in self._list_offsets():
            if is_close(first_example.compute_output(window_index, offsets), expected[:1]) and is_close(
                self.compute_output(window_index, offsets), expected
            ):
                return offsets
        return None

    def _list_offsets(self) -> Iterator[Offsets]:
        """Yield the offsets of a padding, or of a cropping, by up to the size of the window."""
        sizes = [dilation * (size - 1) for size, dilation in zip(self.weight.shape[2:], self.dilation, strict=True)]
        if np.prod([2 * size + 1 for size in sizes]) > MOST_OFFSETS:
            return
        yield from product(*(range(-size, size + 1) for size in sizes))


def explain_padding(
    settings: tuple[Mapping[str, object], Mapping[str, object]],
    x: np.ndarray,
    outputs: tuple[np.ndarray, np.ndarray],
    weight: np.ndarray,
    bias: np.ndarray,
) -> Explanation | None:
    """Explain the difference of two convolutions by their padding. Return None if padding does not explain it.

    Args:
        settings: Settings of A's and of B's layer.
        x: Input of both [n, ...], in any layout.
        outputs: Outputs of A and of B [n, ...], in the layout of the input.
        weight: Kernel [outputs, channels / groups, ...].
        bias: Bias [outputs].
    """
    if x.ndim < 3 or weight.ndim != x.ndim or any(output.ndim != x.ndim for output in outputs):
        return None
    axes = range(1, x.ndim - 1)
    stride, dilation = (_read_setting(settings[0], name, len(axes)) for name in ("stride", "dilation"))
    if stride is None or dilation is None:
        return None
    for channel_axis, first_axis in ((x.ndim - 1, 1), (1, 2)):
        moved, *moved_outputs = (np.moveaxis(array, channel_axis, 1) for array in (x, *outputs))
        groups, remainder = divmod(moved.shape[1], weight.shape[1])
        if not groups or remainder or len(weight) % groups:
            continue
        if any(output.shape[1] != len(weight) for output in moved_outputs):
            continue
        convolution = Convolution(moved, weight, bias, stride, dilation)
        offsets_a, offsets_b = map(convolution.find_offsets, moved_outputs)
        if offsets_a and offsets_b and offsets_a != offsets_b:
            return _describe(settings, offsets_a, offsets_b, first_axis)
    return None


def explain_cropping(a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Explain that two transposed convolutions crop the same array differently. Return None if they crop it equally.

    Args:
        a: Output of A [n, ...].
        b: Output of B, of the same shape.
    """
    if a.shape != b.shape:
        return None
    ranges = (range(-min(MOST_CROPPED, size // 2), min(MOST_CROPPED, size // 2) + 1) for size in a.shape[1:])
    for moves in sorted(filter(any, product(*ranges)), key=_measure_moves):
        part_a, part_b = (
            array[(slice(None), *(slice(max(sign * move, 0), min(sign * move, 0) or None) for move in moves))]
            for array, sign in ((a, 1), (b, -1))
        )
        corner = (slice(1), *(slice(CORNER_SIZE) for _ in moves))  # rejects most moves
        if is_close(part_a[corner], part_b[corner]) and part_a.any() and is_close(part_a, part_b):
            sentence = f"before the first element of the output, B crops {_describe_moves(moves, 1)} than A"
            return Explanation("cropping_position", sentence)
    return None


def _measure_moves(moves: Offsets) -> tuple[int, int]:
    """Return the numbers of moved axes and elements, to try small moves first: equal rows also fit larger moves."""
    return sum(map(bool, moves)), sum(map(abs, moves))


def _describe(
    settings: tuple[Mapping[str, object], Mapping[str, object]], offsets_a: Offsets, offsets_b: Offsets, first_axis: int
) -> Explanation:
    if any(side.get("padding") == "same" and has_strides(side) for side in settings):
        sentence = "padding='same' at strides pads more at the end than at the start, PyTorch pads equally at both ends"
        return Explanation("same_padding_at_strides", sentence)
    described = _describe_moves([a - b for a, b in zip(offsets_a, offsets_b, strict=True)], first_axis)
    return Explanation("padding_position", f"before the first element, B pads {described} than A")


def _describe_moves(moves: Sequence[int], first_axis: int) -> str:
    return " and ".join(
        f"{abs(move)} element{'s' if abs(move) > 1 else ''} {'more' if move > 0 else 'fewer'} along axis {axis}"
        for axis, move in enumerate(moves, first_axis)
        if move
    )


def _read_setting(settings: Mapping[str, object], name: str, count: int) -> Offsets | None:
    """Return a number for each axis of the window, or None if the setting is something else."""
    values = np.atleast_1d(np.asarray(settings.get(name, 1), object))
    if values.shape not in ((1,), (count,)) or not all(type(value) is int and value > 0 for value in values):
        return None
    return tuple(np.broadcast_to(values, count).tolist())
