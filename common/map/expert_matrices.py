"""Alignment of the matrices of experts: one parameter for gate and value of all experts, or two.

The parameters have the axes (experts, outputs, inputs) in most of PyTorch's models, and (experts, inputs, outputs) in
Keras's. Parameters with the same sizes on both sides need no alignment.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from common.map.sublayers import Sublayer, TorchSources
from common.map.transformation import TransformationStep, merge_steps

NAMES = ("gate", "value")


def align_expert_matrices(
    torch_sublayers: Sequence[Sublayer], keras_sublayers: Sequence[Sublayer], is_gate_last: bool
) -> list[Sublayer]:
    """Split PyTorch's fused matrices, and transpose them all, if the models then have equal numbers of each size.

    Args:
        torch_sublayers: PyTorch's sublayers.
        keras_sublayers: Keras's sublayers.
        is_gate_last: Whether Keras has the gate of a gated feed-forward network after its value.
    """
    keras_sizes = [sublayer.sizes for sublayer in keras_sublayers if _is_matrices(sublayer)]
    known_sizes = {tuple(sorted(sizes)) for sizes in keras_sizes}
    for axis, swaps_axes in product((1, 2), (True, False)):
        aligned: list[Sublayer] = []
        for sublayer in torch_sublayers:
            pieces = [sublayer]
            if _is_matrices(sublayer):
                has_counterpart = tuple(sorted(sublayer.sizes)) in known_sizes or sublayer.sizes[axis] % 2
                pieces = [sublayer] if has_counterpart else _split(sublayer, axis)
                pieces = [_swap_axes(piece) for piece in pieces] if swaps_axes else pieces
            aligned += reversed(pieces) if is_gate_last else pieces
        is_split = len(aligned) > len(torch_sublayers)
        if is_split and Counter(keras_sizes) == Counter(piece.sizes for piece in aligned if _is_matrices(piece)):
            return aligned
    return list(torch_sublayers)


def _is_matrices(sublayer: Sublayer) -> bool:
    return sublayer.kind == "parameter" and len(sublayer.sizes) == 3


def _split(sublayer: Sublayer, axis: int) -> list[Sublayer]:
    """Return both halves of a parameter along an axis."""
    half = sublayer.sizes[axis] // 2
    sizes = tuple(half if number == axis else size for number, size in enumerate(sublayer.sizes))
    axes = (1, 0, 2) if axis == 1 else (2, 1, 0)  # moves the axis to the front, and back
    move = TransformationStep("transpose", axes)
    return [
        replace(
            _add_steps(sublayer, (move, TransformationStep("rows", (number * half, (number + 1) * half)), move)),
            path=f"{sublayer.path}.{name}",
            sizes=sizes,
        )
        for number, name in enumerate(NAMES)
    ]


def _swap_axes(sublayer: Sublayer) -> Sublayer:
    """Return the matrices transposed: (outputs, inputs) becomes (inputs, outputs), and the other way round."""
    experts, first, second = sublayer.sizes
    swapped = _add_steps(sublayer, (TransformationStep("transpose", (0, 2, 1)),))
    return replace(swapped, sizes=(experts, second, first))


def _add_steps(sublayer: Sublayer, steps: tuple[TransformationStep, ...]) -> Sublayer:
    """Return a sublayer whose single variable has further steps."""
    ((role, sources),) = sublayer.variables.items()
    assert isinstance(sources, TorchSources)
    return replace(sublayer, variables={role: replace(sources, steps=merge_steps([*sources.steps, *steps]))})
