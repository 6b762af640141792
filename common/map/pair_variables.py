"""Pairs of a Keras variable and the PyTorch parameters or buffers from which it is computed.

First sublayers are paired: layers, or pieces of a layer, with the same variables in both frameworks. A variable's role
is its name within a sublayer, such as "weight". Pairs of a map file come first, then pairs of equal kinds and sizes,
then single variables of equal shapes: a layer of one framework may be a library's class in the other framework.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from common.map.assumed_layout import USUAL_LAYOUT, AssumedLayout
from common.map.description import ModelDescription
from common.map.keras_layers import split_keras_layers
from common.map.keras_pairs import pair_by_path, use_keras_layouts
from common.map.layer_norm_axes import align_layer_norms
from common.map.layer_roles import LayerRoles
from common.map.pair_single_variables import (
    divide_by_kind,
    is_own_square,
    list_pieces,
    list_single_variables,
    pair_single_variables,
    reshape_single,
)
from common.map.pair_sublayers import align_sublayers, list_unpaired, pair_by_signature
from common.map.pointwise_layers import align_pointwise_layers, align_windows
from common.map.reshaped_features import has_moved
from common.map.sublayers import KerasTarget, LayerPair, Sublayer, TorchSources
from common.map.torch_layers import split_torch_layers
from common.map.transformation import ParameterTransformation, TransformationStep, find_unselected, merge_steps

Transformations = Mapping[str, ParameterTransformation]  # transformations by the path of the Keras variable


# The role of the variable that multiplies the input of a layer, by kind
INPUT_WEIGHTS = {"linear": "weight", **dict.fromkeys(("LSTM", "GRU", "RNN"), "weight_ih")}


@dataclass(frozen=True)
class VariablePair:
    """The path of a Keras variable, and its transformation from PyTorch's parameters."""

    keras: str
    transformation: ParameterTransformation


@dataclass(frozen=True)
class ParameterMap:
    """The correspondence between the variables of two models.

    Attributes:
        variable_pairs: The paired variables, in the order of execution.
        layer_pairs: The paired sublayers, in the order of execution.
        unmatched_torch: The names of PyTorch's variables that have no counterpart.
        unmatched_keras: The paths of Keras's variables that have no counterpart.
        is_keras: Whether the model of PyTorch's side is a Keras model too.
    """

    variable_pairs: list[VariablePair]
    layer_pairs: list[LayerPair]
    unmatched_torch: list[str] = field(default_factory=list)
    unmatched_keras: list[str] = field(default_factory=list)
    is_keras: bool = False

    @property
    def is_complete(self) -> bool:
        """Return whether every variable has a counterpart."""
        return not self.unmatched_torch and not self.unmatched_keras

    @property
    def torch_names(self) -> set[str]:
        """The names of PyTorch's variables that have a counterpart."""
        return {source.name for pair in self.variable_pairs for source in pair.transformation.sources}


def pair_variables(
    torch_description: ModelDescription,
    keras_description: ModelDescription,
    file_transformations: Transformations,
    layout: AssumedLayout = USUAL_LAYOUT,
) -> ParameterMap:
    """Pair the variables of two models.

    If the models have different numbers of layers of a kind and size, their order says which ones are counterparts.

    Args:
        torch_description: The description of PyTorch's model.
        keras_description: The description of Keras's model.
        file_transformations: The transformations of a map file, which take precedence.
        layout: The assumed layout of the parameters.
    """
    keras_sublayers = split_keras_layers(keras_description)
    if torch_description.is_keras:
        torch_sublayers, keras_sublayers = use_keras_layouts(split_keras_layers(torch_description), keras_sublayers)
    else:
        torch_sublayers, keras_sublayers = layout.align(split_torch_layers(torch_description), keras_sublayers)
        torch_sublayers = align_pointwise_layers(torch_sublayers, keras_sublayers)
        torch_sublayers = align_windows(torch_sublayers, keras_sublayers)
        keras_sublayers = align_layer_norms(torch_sublayers, keras_sublayers)
    layer_pairs = _pair_by_file(torch_sublayers, keras_sublayers, file_transformations)
    if torch_description.is_keras:
        layer_pairs += pair_by_path(*list_unpaired(torch_sublayers, keras_sublayers, layer_pairs))
    torch_roles = LayerRoles(torch_sublayers, torch_description.layers)
    keras_roles = LayerRoles(keras_sublayers, keras_description.layers)
    unpaired = list_unpaired(torch_sublayers, keras_sublayers, layer_pairs)
    layer_pairs += pair_by_signature(*unpaired, torch_roles, keras_roles)
    layer_pairs += align_sublayers(torch_sublayers, keras_sublayers, layer_pairs)
    torch_unpaired, keras_unpaired = list_unpaired(torch_sublayers, keras_sublayers, layer_pairs)
    torch_singles = list_single_variables(torch_unpaired, torch_description)
    keras_singles = list_single_variables(keras_unpaired, keras_description)
    layer_pairs += pair_single_variables(torch_singles, keras_singles, torch_roles, keras_roles)
    paired_names = _list_paired(layer_pairs)
    torch_parts, keras_parts = (
        [list_pieces(part, description) for part in divide_by_kind(unpaired, paired_names)]
        for unpaired, description in ((torch_unpaired, torch_description), (keras_unpaired, keras_description))
    )
    for torch_part, keras_part in zip(torch_parts, reversed(keras_parts), strict=True):
        layer_pairs += pair_by_signature(torch_part, keras_part, torch_roles, keras_roles)
    # What other single variables of the same sizes are paired with is known now
    singles = _drop_paired(torch_singles, layer_pairs), _drop_paired(keras_singles, layer_pairs)
    layer_pairs += pair_single_variables(*singles, torch_roles, keras_roles)
    torch_names = _list_names(torch_sublayers)
    layer_pairs.sort(key=lambda pair: torch_names.index(pair.torch.variable_names[0]))
    # The sizes of a convolution are (groups, outputs, inputs, *window).
    convolutions = [sublayer for sublayer in torch_sublayers if sublayer.kind == "convolution"]
    convolved_axes = {len(layer.sizes) - 3 for layer in convolutions} if layout.moves_equal_axes else set()
    variable_pairs = {
        pair.keras: pair
        for layer_pair in layer_pairs
        for pair in _pair_roles(layer_pair, convolved_axes, layout.transposes_squares)
    }
    for path, transformation in file_transformations.items():
        shape = keras_description.variables[path].shape
        completed = _complete_steps(variable_pairs.get(path), transformation, torch_description, shape)
        variable_pairs[path] = VariablePair(path, completed)
    parameter_map = ParameterMap(list(variable_pairs.values()), layer_pairs, is_keras=torch_description.is_keras)
    automatic = [pair.transformation for path, pair in variable_pairs.items() if path not in file_transformations]
    partial = find_unselected(automatic, torch_description.shapes)
    partial -= {name for part in torch_sublayers if part.kind == "embedding" for name in part.variable_names}
    partial -= {source.name for chosen in file_transformations.values() for source in chosen.sources}
    paired = parameter_map.torch_names - partial
    return replace(
        parameter_map,
        unmatched_torch=[
            name for name in torch_names if name not in paired and not torch_description.variables[name].is_constant
        ],
        unmatched_keras=[path for path in _list_names(keras_sublayers) if path not in variable_pairs],
    )


def _list_paired(layer_pairs: Iterable[LayerPair]) -> set[str]:
    return {name for pair in layer_pairs for sublayer in pair for name in sublayer.variable_names}


def _drop_paired(sublayers: list[Sublayer], layer_pairs: Iterable[LayerPair]) -> list[Sublayer]:
    paired = _list_paired(layer_pairs)
    return [sublayer for sublayer in sublayers if paired.isdisjoint(sublayer.variable_names)]


def _list_names(sublayers: Iterable[Sublayer]) -> list[str]:
    return list(dict.fromkeys(name for sublayer in sublayers for name in sublayer.variable_names))


def _pair_by_file(
    torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer], file_transformations: Transformations
) -> list[LayerPair]:
    """Pair the sublayers that own the variables of a map file, so that their biases, for example, are paired too."""
    layer_pairs: list[LayerPair] = []
    for path, transformation in file_transformations.items():
        candidates = [
            LayerPair(a, b)
            for a in torch_sublayers
            if _has_first_source(a, transformation)
            for b in keras_sublayers
            if path in b.variable_names and a.signature == b.signature
        ]
        if candidates:
            first = candidates[0]
            if not any(pair.torch is first.torch or pair.keras is first.keras for pair in layer_pairs):
                layer_pairs.append(first)
    return layer_pairs


def _has_first_source(sublayer: Sublayer, transformation: ParameterTransformation) -> bool:
    """Check whether a sublayer of PyTorch has the first source of a transformation."""
    variables = sublayer.variables.values()
    sources = [source for variable in variables if isinstance(variable, TorchSources) for source in variable.sources]
    return transformation.sources[0] in sources


def _complete_steps(
    pair: VariablePair | None,
    transformation: ParameterTransformation,
    torch_description: ModelDescription,
    keras_shape: tuple[int, ...],
) -> ParameterTransformation:
    """Complete a map file's transformation that names sources without steps.

    If the automatic pair of the variable has the same sources, its steps are used. Otherwise the axes are reversed if
    only that fits the shape of the Keras variable.
    """
    if transformation.steps:
        return transformation
    if pair is not None and pair.transformation.sources == transformation.sources:
        return pair.transformation
    torch_shape = torch_description.variables[transformation.sources[0].name].shape
    if torch_shape == keras_shape[::-1] != keras_shape and not transformation.joined:
        return replace(transformation, steps=(_reverse_axes(keras_shape),))
    return transformation


def _reverse_axes(shape: tuple[int, ...]) -> TransformationStep:
    return TransformationStep("transpose", tuple(reversed(range(len(shape)))))


def _pair_roles(layer_pair: LayerPair, convolved_axes: set[int], transposes_squares: bool) -> list[VariablePair]:
    """Pair the variables of two sublayers by their roles.

    Args:
        layer_pair: The two sublayers.
        convolved_axes: The numbers of axes of the model's convolutions, such as 2 for images.
        transposes_squares: Whether square matrices of own classes are transposed.
    """
    torch, keras = layer_pair
    roles = [
        (role, sources, keras.variables[role]) for role, sources in torch.variables.items() if role in keras.variables
    ]
    if torch.kind == "parameter":  # each side has its own name for the role of the single variable
        (sources,), (target,) = torch.variables.values(), keras.variables.values()
        roles = [("", sources, target)]
    pairs = []
    for role, sources, target in roles:
        assert isinstance(sources, TorchSources)
        assert isinstance(target, KerasTarget)
        permutations = (
            _permute_flattened(layer_pair, role, convolved_axes),
            _permute_reshaped(layer_pair, role, convolved_axes),
        )
        steps = [*sources.steps, *chain.from_iterable(permutations), *target.steps]
        if torch.kind == "parameter" and torch.sizes != keras.sizes:
            steps = [*sources.steps, reshape_single(torch.sizes, keras.sizes)]
        elif transposes_squares and all(map(is_own_square, layer_pair)):
            steps = [_reverse_axes(torch.sizes)]
        transformation = ParameterTransformation(sources.sources, sources.joined, merge_steps(steps))
        pairs.append(VariablePair(target.name, transformation))
    return pairs


def _permute_flattened(layer_pair: LayerPair, role: str, convolved_axes: set[int]) -> list[TransformationStep]:
    """Return the steps that reorder features which the models flatten from examples with channels.

    PyTorch flattens (channels, *window), Keras (*window, channels). There are no steps if the models flatten nothing
    before this layer, or flatten the axes in the same order.
    """
    torch, before = layer_pair.torch, layer_pair.torch.unflattened_shape
    if before is None or not _moves_channels(before, layer_pair.keras.unflattened_shape, convolved_axes):
        return []
    window = tuple(range(1, len(before)))
    if torch.kind in INPUT_WEIGHTS:
        if role != INPUT_WEIGHTS[torch.kind]:
            return []
        unflattened, axes = (torch.sizes[0], *before), (0, *(axis + 1 for axis in window), 1)
    elif len(torch.sizes) == 1:
        unflattened, axes = before, (*window, 0)
    else:
        return []
    return [
        TransformationStep("reshape", unflattened),
        TransformationStep("transpose", axes),
        TransformationStep("reshape", torch.sizes),
    ]


def _permute_reshaped(layer_pair: LayerPair, role: str, convolved_axes: set[int]) -> list[TransformationStep]:
    """Return the steps that reorder the features of a linear layer that the models divide into axes with channels."""
    torch, shape = layer_pair.torch, layer_pair.torch.reshaped_shape
    if shape is None or not _moves_channels(shape, layer_pair.keras.reshaped_shape, convolved_axes):
        return []
    inputs = torch.sizes[1:] if role == "weight" else ()
    axes = tuple(range(len(shape) + len(inputs)))
    return [
        TransformationStep("reshape", (*shape, *inputs)),
        TransformationStep("transpose", (*axes[1 : len(shape)], 0, *axes[len(shape) :])),
        TransformationStep("reshape", (torch.sizes[0], *inputs)),
    ]


def _moves_channels(torch: tuple[int, ...], keras: tuple[int, ...] | None, convolved_axes: set[int]) -> bool:
    """Check whether the first axis of an example in PyTorch is the last one in Keras, its channels.

    Args:
        torch: The shape of an example in PyTorch.
        keras: The shape of an example in Keras, if it has several axes.
        convolved_axes: The numbers of axes of the model's convolutions. They decide if all sizes are equal.
    """
    if keras is not None and len(torch) != len(keras):  # windows of one row in a model with one axis more
        torch, keras = (tuple(size for size in shape if size > 1) for shape in (torch, keras))
    return has_moved(torch, keras) and (torch != keras or len(torch) - 1 in convolved_axes)
