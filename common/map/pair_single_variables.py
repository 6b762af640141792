"""Pairs of single variables whose layers may be of different kinds.

A layer that one framework has, such as a norm, may be a class of a library in the other. If both layers have one
variable, the layers are paired by the shape of the variable and their order.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from common.map.description import ModelDescription
from common.map.layer_roles import LayerRoles
from common.map.pair_sublayers import list_unpaired, pair_by_signature
from common.map.sublayers import KerasTarget, LayerPair, Sublayer, TorchSources, list_variable_names
from common.map.transformation import TransformationStep, transpose_kernel


def list_single_variables(sublayers: list[Sublayer], description: ModelDescription) -> list[Sublayer]:
    """Return the sublayers that have a single variable, as sublayers of the kind "parameter"."""
    return [
        sublayer
        if sublayer.kind == "parameter"
        else Sublayer(
            "parameter",
            sublayer.path,
            description.variables[name].shape,
            {role: KerasTarget(variable.name) if isinstance(variable, KerasTarget) else variable},
            sublayer.output,
            settings=sublayer.settings,
        )
        for sublayer in sublayers
        for role, variable in sublayer.variables.items()
        for name in list_variable_names(variable)[:1]
        if len(sublayer.variables) == 1
    ]


def pair_single_variables(
    torch_singles: list[Sublayer], keras_singles: list[Sublayer], torch_roles: LayerRoles, keras_roles: LayerRoles
) -> list[LayerPair]:
    """Pair single variables of equal shapes, then of equal sizes in another order, then of shapes with axes of size 1.

    Matrices of experts, for example, have their sizes in another order. A vector with axes of size 1 is the scale
    [channels, 1, 1] of PyTorch's images, which is [channels] in Keras.

    Args:
        torch_singles: The single variables of PyTorch that have no counterpart yet.
        keras_singles: The single variables of Keras that have no counterpart yet.
        torch_roles: The roles of the layers in PyTorch's model.
        keras_roles: The roles of the layers in Keras's model.
    """
    layer_pairs = pair_by_signature(torch_singles, keras_singles, torch_roles, keras_roles)
    unpaired = list_unpaired(torch_singles, keras_singles, layer_pairs)
    layer_pairs += _pair_normalized(*unpaired, torch_roles, keras_roles, _sort)
    unpaired = list_unpaired(torch_singles, keras_singles, layer_pairs)
    layer_pairs += _pair_normalized(*unpaired, torch_roles, keras_roles, _squeeze_vector)
    return layer_pairs + _pair_by_shape(*list_unpaired(torch_singles, keras_singles, layer_pairs))


def divide_by_kind(sublayers: list[Sublayer], paired_names: Collection[str]) -> tuple[list[Sublayer], list[Sublayer]]:
    """Return the unpaired sublayers in two lists: layers of known kinds, and single variables of other classes."""
    paired = {*paired_names}
    unpaired = [sublayer for sublayer in sublayers if paired.isdisjoint(sublayer.variable_names)]
    layers = [sublayer for sublayer in unpaired if sublayer.kind != "parameter"]
    return layers, [sublayer for sublayer in unpaired if sublayer.kind == "parameter"]


def list_pieces(sublayers: list[Sublayer], description: ModelDescription) -> list[Sublayer]:
    """Return the variables of layers as sublayers of the kind "parameter", with kernels in Keras's layout.

    The other model may compute the same in a class of its own, with variables of its own.
    """
    return [
        sublayer if sublayer.kind == "parameter" else _build_piece(sublayer, role, variable, description)
        for sublayer in sublayers
        for role, variable in sublayer.variables.items()
    ]


def _build_piece(
    sublayer: Sublayer, role: str, variable: TorchSources | KerasTarget, description: ModelDescription
) -> Sublayer:
    if isinstance(variable, KerasTarget):
        piece, sizes = KerasTarget(variable.name), description.variables[variable.name].shape
        return Sublayer("parameter", sublayer.path, sizes, {role: piece})
    sizes = sublayer.sizes[1:] if sublayer.kind.endswith("convolution") else sublayer.sizes
    if role != "weight" or not sublayer.kind.endswith(("linear", "convolution")):
        sizes = description.variables[variable.sources[0].name].shape
        return Sublayer("parameter", sublayer.path, sizes, {role: variable})
    step = transpose_kernel(len(sizes))
    sizes = tuple(sizes[axis] for axis in step.numbers)
    return Sublayer("parameter", sublayer.path, sizes, {role: replace(variable, steps=(*variable.steps, step))})


def is_own_square(sublayer: Sublayer) -> bool:
    """Check whether a sublayer is a square matrix in a class of its own, whose shape does not tell its layout."""
    is_square = len(sublayer.sizes) == 2 and len(set(sublayer.sizes)) == 1
    return is_square and sublayer.kind == "parameter" and not any(role.steps for role in sublayer.variables.values())


def reshape_single(torch_sizes: tuple[int, ...], keras_sizes: tuple[int, ...]) -> TransformationStep:
    """Return the step between two single variables: new axes of size 1, or another order of the axes."""
    if _squeeze(torch_sizes) == _squeeze(keras_sizes):
        return TransformationStep("reshape", keras_sizes)
    return TransformationStep("transpose", tuple(map(torch_sizes.index, keras_sizes)))


def _pair_normalized(
    torch_singles: list[Sublayer],
    keras_singles: list[Sublayer],
    torch_roles: LayerRoles,
    keras_roles: LayerRoles,
    normalize: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> list[LayerPair]:
    """Pair single variables whose sizes are equal after `normalize`."""
    torch_normalized, keras_normalized = (
        [replace(single, sizes=normalize(single.sizes)) for single in singles]
        for singles in (torch_singles, keras_singles)
    )
    torch_originals, keras_originals = (
        {tuple(single.variable_names): single for single in singles} for singles in (torch_singles, keras_singles)
    )
    return [
        LayerPair(torch_originals[tuple(pair.torch.variable_names)], keras_originals[tuple(pair.keras.variable_names)])
        for pair in pair_by_signature(torch_normalized, keras_normalized, torch_roles, keras_roles)
    ]


def _sort(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sort sizes if they all differ. Different sizes identify the axes that correspond."""
    return tuple(sorted(sizes)) if len(set(sizes)) == len(sizes) else sizes


def _pair_by_shape(torch_singles: list[Sublayer], keras_singles: list[Sublayer]) -> list[LayerPair]:
    """Pair single variables of any kind if each model has only one of a shape, whose axes of size 1 do not count."""
    layer_pairs = []
    for single in torch_singles:
        sizes = _squeeze(single.sizes)
        candidates = [other for other in keras_singles if _squeeze(other.sizes) == sizes]
        rivals = [other for other in torch_singles if sorted(_squeeze(other.sizes)) == sorted(sizes)]
        if len(candidates) == len(rivals) == 1 and len(sizes) <= 2:
            layer_pairs.append(LayerPair(single, candidates[0]))
    return layer_pairs


def _squeeze(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in sizes if size != 1)


def _squeeze_vector(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes without axes of size 1 if at most one other axis remains."""
    return _squeeze(sizes) if len(_squeeze(sizes)) < 2 else sizes
