"""Alignment of recurrences in a user's class with the recurrent layers of the other framework.

Such a class multiplies the token by one matrix and the state by another matrix, and adds up to two biases. These
variables are parameters of the class, or belong to two linear layers in it. Their sublayers are joined to one sublayer
of the kind of the recurrent layer.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from common.map.sublayers import KerasTarget, Sublayer, TorchSources
from common.map.transformation import TransformationStep

Shape = tuple[int, ...]
Signature = tuple[str, Shape]
Variable = TorchSources | KerasTarget
GATE_COUNTS = {"LSTM": 4, "GRU": 3, "RNN": 1}
WEIGHT_ROLES, BIAS_ROLES = ("weight_ih", "weight_hh"), ("bias_ih", "bias_hh")
TRANSPOSE = TransformationStep("transpose", (1, 0))


@dataclass(frozen=True)
class _OwnCell:
    """A recurrence of a class of its own.

    Attributes:
        path: The path of the class.
        signature: The kind and the sizes of the recurrent layers that compute the same.
        members: The sublayers that have the variables.
        matrices: The matrices that multiply the token and the state, as variables of the shape (gates * units, inputs).
        biases: The biases: no, one or two.
    """

    path: str
    signature: Signature
    members: list[Sublayer]
    matrices: list[Variable]
    biases: list[Variable]


def align_own_recurrences(
    torch_sublayers: list[Sublayer],
    keras_sublayers: list[Sublayer],
    gate_order: Shape = (),
    is_state_first: bool = False,
) -> tuple[list[Sublayer], list[Sublayer]]:
    """Join the sublayers of own recurrences whose counterparts are recurrent layers of the other model.

    Args:
        torch_sublayers: PyTorch's sublayers.
        keras_sublayers: Keras's sublayers.
        gate_order: The order of the gates in all own recurrences with as many gates: order[k] is the block of rows that
            PyTorch's k-th gate reads. Other recurrences have PyTorch's order.
        is_state_first: Whether the first of two matrices of equal sizes multiplies the state, not the token.
    """
    for cell in _find_cells(torch_sublayers, keras_sublayers, is_state_first):
        torch_sublayers = _replace(torch_sublayers, cell.members, _join_torch(cell, gate_order))
    cells = list(_find_cells(keras_sublayers, torch_sublayers, is_state_first))
    for cell in cells:
        keras_sublayers = _replace(keras_sublayers, cell.members, _join_keras(cell, gate_order))
    separate = {cell.signature for cell in cells if len(cell.biases) == 2}
    return [_divide_bias(layer) if layer.signature in separate else layer for layer in torch_sublayers], keras_sublayers


def list_gate_counts(torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer]) -> set[int]:
    """Return the numbers of gates of the own recurrences that `align_own_recurrences` joins."""
    cells = [*_find_cells(torch_sublayers, keras_sublayers), *_find_cells(keras_sublayers, torch_sublayers)]
    return {GATE_COUNTS[cell.signature[0]] for cell in cells}


def _find_cells(
    sublayers: list[Sublayer], other_sublayers: list[Sublayer], is_state_first: bool = False
) -> Iterator[_OwnCell]:
    """Yield the own recurrences in a model that lacks the recurrent layers of their sizes which the other model has.

    The numbers of both must be equal: two linear layers of such sizes in a row are no recurrence.
    """
    owners: dict[str, list[Sublayer]] = {}
    for sublayer in sublayers:
        if sublayer.kind in ("linear", "parameter"):
            owner = sublayer.path if sublayer.kind == "parameter" else re.sub(r"(^|[./])[^./]+$", "", sublayer.path)
            owners.setdefault(owner, []).append(sublayer)
    lacking = {layer.signature for layer in other_sublayers} - {layer.signature for layer in sublayers}
    for signature in sorted(signature for signature in lacking if signature[0] in GATE_COUNTS):
        cells = [
            cell
            for path, members in owners.items()
            if (cell := _find_cell(path, members, signature, is_state_first)) is not None
        ]
        if len(cells) == sum(layer.signature == signature for layer in other_sublayers):
            for cell in cells:
                del owners[cell.path]
            yield from cells


def _find_cell(path: str, members: list[Sublayer], signature: Signature, is_state_first: bool) -> _OwnCell | None:
    """Return the recurrence of a class if exactly two of its matrices have the sizes; a GRU needs 0 or 2 biases."""
    kind, (rows, inputs) = signature
    units = rows // GATE_COUNTS[kind]
    matrices = [
        (member, member.sizes[0] if member.sizes[1] == rows else member.sizes[1])
        for member in members
        if len(member.sizes) == 2 and (member.sizes[0] == rows or (member.kind, member.sizes[1]) == ("parameter", rows))
    ]
    matrices.sort(key=lambda matrix: matrix[1] != inputs)
    if [count for _, count in matrices] != [inputs, units]:
        return None
    if is_state_first and inputs == units:
        matrices.reverse()
    biases = [matrix.variables["bias"] for matrix, _ in matrices if "bias" in matrix.variables]
    vectors = [member for member in members if (member.kind, member.sizes) == ("parameter", (rows,))]
    biases += [variable for vector in vectors for variable in vector.variables.values()]
    if len(biases) > 2 or (kind == "GRU" and len(biases) == 1):
        return None
    own_members = [*(matrix for matrix, _ in matrices), *vectors]
    return _OwnCell(path, signature, own_members, [_orient(matrix, rows) for matrix, _ in matrices], biases)


def _orient(matrix: Sublayer, rows: int) -> Variable:
    """Return a matrix with the steps from or to the shape (rows, inputs)."""
    if matrix.kind == "linear":
        return matrix.variables["weight"]
    (variable,) = matrix.variables.values()
    is_transposed = matrix.sizes[0] != rows
    return replace(variable, steps=(*variable.steps, TRANSPOSE)) if is_transposed else variable


def _join_torch(cell: _OwnCell, gate_order: Shape) -> Sublayer:
    kind, sizes = cell.signature
    reorder = _reorder_gates(kind, gate_order)
    variables: dict[str, Variable] = {
        role: replace(matrix, steps=(*matrix.steps, *reorder))
        for role, matrix in zip(WEIGHT_ROLES, cell.matrices, strict=True)
    }
    sources = tuple(source for bias in cell.biases if isinstance(bias, TorchSources) for source in bias.sources)
    is_stacked = kind == "GRU"
    if sources:
        joined = "" if len(sources) == 1 else "," if is_stacked else "+"
        variables["bias"] = TorchSources(sources, joined, _reorder_gates(kind, gate_order, axis=int(is_stacked)))
    return Sublayer(kind, cell.path, sizes, variables)


def _join_keras(cell: _OwnCell, gate_order: Shape) -> Sublayer:
    kind, sizes = cell.signature
    reorder = _reorder_gates(kind, tuple(map(gate_order.index, range(len(gate_order)))))
    roles = [*WEIGHT_ROLES, *(BIAS_ROLES if len(cell.biases) == 2 else ["bias"] * len(cell.biases))]
    variables = {
        role: replace(variable, steps=(*reorder, *variable.steps))
        for role, variable in zip(roles, [*cell.matrices, *cell.biases], strict=True)
    }
    return Sublayer(kind, cell.path, sizes, variables)


def _reorder_gates(kind: str, order: Shape, axis: int = 0) -> tuple[TransformationStep, ...]:
    return (TransformationStep("blocks", order, axis),) if len(order) == GATE_COUNTS[kind] else ()


def _divide_bias(layer: Sublayer) -> Sublayer:
    """Return a recurrent layer of PyTorch whose two biases have roles of their own."""
    variables = dict(layer.variables)
    bias = variables.pop("bias", None)
    sources = bias.sources if isinstance(bias, TorchSources) else ()
    variables |= {role: TorchSources((source,)) for role, source in zip(BIAS_ROLES, sources, strict=False)}
    return replace(layer, variables=variables)


def _replace(sublayers: list[Sublayer], members: list[Sublayer], joined: Sublayer) -> list[Sublayer]:
    """Return the sublayers with the joined one in place of the first member, and without the other members."""
    first = next(index for index, sublayer in enumerate(sublayers) if sublayer in members)
    replaced = [*sublayers[:first], joined, *sublayers[first + 1 :]]
    return [sublayer for sublayer in replaced if sublayer not in members]
