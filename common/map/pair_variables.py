"""Which Keras variable holds which torch parameter or buffer, and how it is transformed."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from common.map.description import ModelDescription
from common.map.fused_projections import align_fused_projections
from common.map.keras_layers import split_keras_layers
from common.map.sublayers import KerasTarget, LayerPair, Sublayer, TorchSources, list_variable_names
from common.map.torch_layers import split_torch_layers
from common.map.transformation import ParameterTransformation, TransformationStep


@dataclass(frozen=True)
class VariablePair:
    """A Keras variable, by its path, and the transformation to it."""

    keras: str
    transformation: ParameterTransformation


@dataclass(frozen=True)
class ParameterMap:
    """pairs: in the order of execution. parts: (PyTorch's, Keras's). unmatched: have none on the other side."""

    variable_pairs: list[VariablePair]
    layer_pairs: list[LayerPair]
    unmatched_torch: list[str] = field(default_factory=list)
    unmatched_keras: list[str] = field(default_factory=list)


def pair_variables(
    torch: ModelDescription, keras: ModelDescription, given: Mapping[str, ParameterTransformation]
) -> ParameterMap:
    """Pair two descriptions. given: transformations by Keras path, which are kept."""
    theirs = split_keras_layers(keras)
    ours = align_fused_projections(split_torch_layers(torch), theirs)
    parts = _settled(ours, theirs, given)
    parts += _by_signature(_without(ours, [a for a, _ in parts]), _without(theirs, [b for _, b in parts]))
    parts += _by_shape(_without(ours, [a for a, _ in parts]), _without(theirs, [b for _, b in parts]), torch, keras)
    order = _all_names(ours)
    parts.sort(key=lambda both: order.index(_all_names([both[0]])[0]))
    convolved = {len(part.sizes) - 3 for part in ours if part.kind == "convolution"}
    found = {each.keras: each for both in parts for each in _pairs(*both, convolved)}
    pairs = dict(found)
    for name, each in given.items():
        pairs[name] = VariablePair(name, _complete(found.get(name), each, torch, keras.variables[name].shape))
    taken = {source.name for each in pairs.values() for source in each.transformation.sources}
    return ParameterMap(
        list(pairs.values()),
        parts,
        [name for name in _all_names(ours) if name not in taken],
        [name for name in _all_names(theirs) if name not in pairs],
    )


def find_candidates(
    parameter_map: ParameterMap, torch: ModelDescription, keras: ModelDescription, name: str
) -> list[str]:
    """The nearest variables on the other side of one that is not matched: unmatched ones of its size, then others."""
    of_torch = name in parameter_map.unmatched_torch
    own, other = (torch, keras) if of_torch else (keras, torch)
    free = parameter_map.unmatched_keras if of_torch else parameter_map.unmatched_torch
    shape = sorted(own.variables[name].shape)
    alike = [each for each in free if sorted(other.variables[each].shape) == shape]
    ranks = [each for each in free if len(other.variables[each].shape) == len(shape) and each not in alike]
    return (alike + ranks)[:3]


def _all_names(parts: Iterable[Sublayer]) -> list[str]:
    return list(
        dict.fromkeys(name for part in parts for array in part.arrays.values() for name in list_variable_names(array))
    )


def _without(parts: list[Sublayer], taken: list[Sublayer]) -> list[Sublayer]:
    return [part for part in parts if part not in taken]


def _settled(
    ours: list[Sublayer], theirs: list[Sublayer], given: Mapping[str, ParameterTransformation]
) -> list[LayerPair]:
    """The pairs of parts that follow from given pairs of variables: what else they have is paired too."""
    found: list[LayerPair] = []
    for path, transformation in given.items():
        mine = [part for part in ours if _has(part, transformation)]
        other = [part for part in theirs if path in _all_names([part])]
        both = [LayerPair(a, b) for a in mine for b in other if a.signature == b.signature]
        if both and not any(a is both[0][0] or b is both[0][1] for a, b in found):
            found.append(both[0])
    return found


def _complete(
    found: VariablePair | None, given: ParameterTransformation, torch: ModelDescription, shape: tuple[int, ...]
) -> ParameterTransformation:
    """A given transformation; where it is a name alone, with the steps that the layers or the shapes imply."""
    if given.steps:
        return given
    if found is not None and found.transformation.sources == given.sources:
        return found.transformation
    turned = torch.variables[given.sources[0].name].shape == shape[::-1] != shape and not given.joined
    return (
        replace(given, steps=(TransformationStep("transpose", tuple(reversed(range(len(shape))))),))
        if turned
        else given
    )


def _has(part: Sublayer, transformation: ParameterTransformation) -> bool:
    sources = [source for array in part.arrays.values() if isinstance(array, TorchSources) for source in array.sources]
    return transformation.sources[0] in sources


def _by_signature(ours: list[Sublayer], theirs: list[Sublayer]) -> list[LayerPair]:
    """Parts of one kind and size: by equal names, else in the order of execution; none where their numbers differ."""
    found: list[LayerPair] = []
    for signature in dict.fromkeys(part.signature for part in ours):
        left = [part for part in ours if part.signature == signature]
        right = [part for part in theirs if part.signature == signature]
        first, second = _names(left), _names(right)
        if sorted(first) == sorted(second) and len(set(word for word, _ in first)) > 1:
            found += [LayerPair(part, right[second.index(name)]) for part, name in zip(left, first, strict=True)]
        elif len(left) == len(right):
            found += map(LayerPair, left, right)
    return found


def _names(parts: list[Sublayer]) -> list[tuple[str, int]]:
    """The last word of each path, and how many parts before it have the same."""
    seen: Counter[str] = Counter()
    names = []
    for part in parts:
        word = re.split(r"[./]", part.path)[-1].lower().replace("_", "")
        names.append((word, seen[word]))
        seen[word] += 1
    return names


def _by_shape(
    ours: list[Sublayer], theirs: list[Sublayer], torch: ModelDescription, keras: ModelDescription
) -> list[LayerPair]:
    """Single variables that are left, of whatever kind, where one on each side has a shape, or its reverse."""
    left, right = _singles(ours, torch), _singles(theirs, keras)
    found = []
    for part in left:
        same = [each for each in right if each.sizes == part.sizes]
        turned = [each for each in right if each.sizes == part.sizes[::-1]]
        rivals = [each for each in left if sorted(each.sizes) == sorted(part.sizes)]
        matches = same or turned
        if len(matches) == len(rivals) == 1 and len(part.sizes) <= 2:
            found.append(LayerPair(part, matches[0]))
    return found


def _singles(parts: list[Sublayer], description: ModelDescription) -> list[Sublayer]:
    return [
        Sublayer("parameter", part.path, description.variables[name].shape, {role: array}, part.output)
        for part in parts
        for role, array in part.arrays.items()
        for name in list_variable_names(array)[:1]
        if len(part.arrays) == 1
    ]


def _pairs(ours: Sublayer, theirs: Sublayer, convolved: set[int]) -> list[VariablePair]:
    """The pairs of variables of two parts, by their roles."""
    found = []
    pairs = [(role, array, theirs.arrays[role]) for role, array in ours.arrays.items() if role in theirs.arrays]
    if ours.kind == "parameter":  # of one variable, whose role each side names in its own way
        (array,), (other,) = ours.arrays.values(), theirs.arrays.values()
        pairs = [("", array, other)]
    for role, array, other in pairs:
        assert isinstance(array, TorchSources) and isinstance(other, KerasTarget)
        steps = [*_permutation(ours, theirs, role, convolved), *other.steps]
        if ours.kind == "parameter" and ours.sizes != theirs.sizes:
            steps = [TransformationStep("transpose", tuple(reversed(range(len(ours.sizes)))))]
        found.append(VariablePair(other.name, ParameterTransformation(array.sources, array.joined, tuple(steps))))
    return found


def _permutation(ours: Sublayer, theirs: Sublayer, role: str, convolved: set[int]) -> list[TransformationStep]:
    """The steps from features of flattened (channels, *window), as PyTorch has them, to (*window, channels)."""
    before, after = ours.flattened, theirs.flattened
    if before is None or after is None or after != (*before[1:], before[0]):
        return []
    if before == after and len(before) - 1 not in convolved:
        return []
    window = tuple(range(1, len(before)))
    if ours.kind == "linear":
        if role != "weight":
            return []
        moved = (0, *(axis + 1 for axis in window), 1)
        return [
            TransformationStep("reshape", (ours.sizes[0], *before)),
            TransformationStep("transpose", moved),
            TransformationStep("reshape", ours.sizes),
        ]
    if len(ours.sizes) != 1:
        return []
    return [
        TransformationStep("reshape", before),
        TransformationStep("transpose", (*window, 0)),
        TransformationStep("reshape", ours.sizes),
    ]
