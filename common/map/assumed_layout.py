"""Assumptions about the layout of parameters, which their sizes do not show.

A sublayer is a layer, or a piece of a layer, that can have a counterpart in the other model. A fused projection is one
linear layer that computes query, key and value.
"""

from dataclasses import dataclass, replace
from itertools import permutations, product

from common.map.embedding_rows import align_embedding_rows
from common.map.expert_matrices import align_expert_matrices
from common.map.fused_projections import align_fused_projections
from common.map.own_recurrences import align_own_recurrences, list_gate_counts
from common.map.pair_single_variables import is_own_square
from common.map.sublayers import Sublayer


@dataclass(frozen=True)
class AssumedLayout:
    """An assumption about the layout of the parameters of two models.

    Attributes:
        by_head: Whether a fused projection computes query, key and value of the first head first, not all queries.
        is_gate_last: Whether Keras computes the gate of a gated feed-forward network after its value.
        rows_at_end: Whether a shorter embedding of Keras has the last rows of PyTorch's, not the first ones.
        moves_equal_axes: Whether two axes of equal sizes, which the models flatten, or into which they divide features,
            are channels and positions if there are convolutions of as many axes. Otherwise they are a matrix's axes.
        transposes_squares: Whether square matrices that are parameters of a class of its own are transposed in Keras.
        gate_order: The order of the gates in recurrences of a class of its own; see `align_own_recurrences`.
        is_state_first: Whether such recurrences have the matrix of the state before the matrix of the token.
    """

    by_head: bool = False
    is_gate_last: bool = False
    rows_at_end: bool = True
    moves_equal_axes: bool = True
    transposes_squares: bool = False
    gate_order: tuple[int, ...] = ()
    is_state_first: bool = False

    def align(
        self, torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer]
    ) -> tuple[list[Sublayer], list[Sublayer]]:
        """Return the sublayers of both models, split, joined and shortened so that they correspond to each other."""
        aligned, keras_sublayers = align_own_recurrences(
            torch_sublayers, keras_sublayers, self.gate_order, self.is_state_first
        )
        aligned = align_fused_projections(aligned, keras_sublayers, self.by_head, self.is_gate_last)
        aligned = align_expert_matrices(aligned, keras_sublayers, self.is_gate_last)
        return align_embedding_rows(aligned, keras_sublayers, self.rows_at_end), keras_sublayers


USUAL_LAYOUT = AssumedLayout()


def list_layouts(torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer]) -> list[AssumedLayout]:
    """Return the layouts that lead to different maps, the usual one first."""
    layouts: list[AssumedLayout] = []
    aligned: list[tuple[list[Sublayer], list[Sublayer]]] = []
    choices = [AssumedLayout(*choice) for choice in product((False, True), (False, True), (True, False))]
    for count in sorted(list_gate_counts(torch_sublayers, keras_sublayers)):
        choices += [
            replace(USUAL_LAYOUT, gate_order=order, is_state_first=is_state_first)
            for order, is_state_first in product(permutations(range(count)), (False, True))
        ]
    for layout in choices:
        sublayers = layout.align(torch_sublayers, keras_sublayers)
        if sublayers not in aligned:
            layouts.append(layout)
            aligned.append(sublayers)
    shapes = (shape for layer in torch_sublayers for shape in (layer.unflattened_shape, layer.reshaped_shape))
    if any(shape is not None and len(shape) > 1 and len(set(shape)) == 1 for shape in shapes):
        layouts.append(replace(USUAL_LAYOUT, moves_equal_axes=False))
    if any(map(is_own_square, torch_sublayers)):
        layouts.append(replace(USUAL_LAYOUT, transposes_squares=True))
    return layouts
