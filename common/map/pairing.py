"""Which Keras variable holds which torch parameter or buffer, and how it is transformed."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from common.map.description import Description
from common.map.fused import align_fused
from common.map.keras_parts import keras_parts
from common.map.parts import KerasArray, Part, TorchArray, names_of
from common.map.torch_parts import torch_parts
from common.map.transformations import Step, Transformation


@dataclass(frozen=True)
class Pair:
    """A Keras variable, by its path, and the transformation to it."""

    keras: str
    transformation: Transformation


@dataclass(frozen=True)
class Pairing:
    """pairs: in the order of execution. parts: (PyTorch's, Keras's). unmatched: have none on the other side."""

    pairs: list[Pair]
    parts: list[tuple[Part, Part]]
    unmatched_torch: list[str] = field(default_factory=list)
    unmatched_keras: list[str] = field(default_factory=list)


def pair(torch: Description, keras: Description, given: Mapping[str, Transformation]) -> Pairing:
    """Pair two descriptions. given: transformations by Keras path, which are kept."""
    theirs = keras_parts(keras)
    ours = align_fused(torch_parts(torch), theirs)
    parts = _settled(ours, theirs, given)
    parts += _by_signature(_without(ours, [a for a, _ in parts]), _without(theirs, [b for _, b in parts]))
    parts += _by_shape(_without(ours, [a for a, _ in parts]), _without(theirs, [b for _, b in parts]), torch, keras)
    order = _all_names(ours)
    parts.sort(key=lambda both: order.index(_all_names([both[0]])[0]))
    convolved = {len(part.sizes) - 3 for part in ours if part.kind == "convolution"}
    found = {each.keras: each for both in parts for each in _pairs(*both, convolved)}
    pairs = dict(found)
    for name, each in given.items():
        pairs[name] = Pair(name, _complete(found.get(name), each, torch, keras.variables[name].shape))
    taken = {source.name for each in pairs.values() for source in each.transformation.sources}
    return Pairing(
        list(pairs.values()),
        parts,
        [name for name in _all_names(ours) if name not in taken],
        [name for name in _all_names(theirs) if name not in pairs],
    )


def candidates(pairing: Pairing, torch: Description, keras: Description, name: str) -> list[str]:
    """The nearest variables on the other side of one that is not matched: unmatched ones of its size, then others."""
    of_torch = name in pairing.unmatched_torch
    own, other = (torch, keras) if of_torch else (keras, torch)
    free = pairing.unmatched_keras if of_torch else pairing.unmatched_torch
    shape = sorted(own.variables[name].shape)
    alike = [each for each in free if sorted(other.variables[each].shape) == shape]
    ranks = [each for each in free if len(other.variables[each].shape) == len(shape) and each not in alike]
    return (alike + ranks)[:3]


def _all_names(parts: Iterable[Part]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for array in part.arrays.values() for name in names_of(array)))


def _without(parts: list[Part], taken: list[Part]) -> list[Part]:
    return [part for part in parts if part not in taken]


def _settled(ours: list[Part], theirs: list[Part], given: Mapping[str, Transformation]) -> list[tuple[Part, Part]]:
    """The pairs of parts that follow from given pairs of variables: what else they have is paired too."""
    found: list[tuple[Part, Part]] = []
    for path, transformation in given.items():
        mine = [part for part in ours if _has(part, transformation)]
        other = [part for part in theirs if path in _all_names([part])]
        both = [(a, b) for a in mine for b in other if a.signature == b.signature]
        if both and not any(a is both[0][0] or b is both[0][1] for a, b in found):
            found.append(both[0])
    return found


def _complete(found: Pair | None, given: Transformation, torch: Description, shape: tuple[int, ...]) -> Transformation:
    """A given transformation; where it is a name alone, with the steps that the layers or the shapes imply."""
    if given.steps:
        return given
    if found is not None and found.transformation.sources == given.sources:
        return found.transformation
    turned = torch.variables[given.sources[0].name].shape == shape[::-1] != shape and not given.joined
    return replace(given, steps=(Step("transpose", tuple(reversed(range(len(shape))))),)) if turned else given


def _has(part: Part, transformation: Transformation) -> bool:
    sources = [source for array in part.arrays.values() if isinstance(array, TorchArray) for source in array.sources]
    return transformation.sources[0] in sources


def _by_signature(ours: list[Part], theirs: list[Part]) -> list[tuple[Part, Part]]:
    """Parts of one kind and size: by equal names, else in the order of execution; none where their numbers differ."""
    found: list[tuple[Part, Part]] = []
    for signature in dict.fromkeys(part.signature for part in ours):
        left = [part for part in ours if part.signature == signature]
        right = [part for part in theirs if part.signature == signature]
        first, second = _names(left), _names(right)
        if sorted(first) == sorted(second) and len(set(word for word, _ in first)) > 1:
            found += [(part, right[second.index(name)]) for part, name in zip(left, first, strict=True)]
        elif len(left) == len(right):
            found += zip(left, right, strict=True)
    return found


def _names(parts: list[Part]) -> list[tuple[str, int]]:
    """The last word of each path, and how many parts before it have the same."""
    seen: Counter[str] = Counter()
    names = []
    for part in parts:
        word = re.split(r"[./]", part.path)[-1].lower().replace("_", "")
        names.append((word, seen[word]))
        seen[word] += 1
    return names


def _by_shape(ours: list[Part], theirs: list[Part], torch: Description, keras: Description) -> list[tuple[Part, Part]]:
    """Single variables that are left, of whatever kind, where one on each side has a shape, or its reverse."""
    left, right = _singles(ours, torch), _singles(theirs, keras)
    found = []
    for part in left:
        same = [each for each in right if each.sizes == part.sizes]
        turned = [each for each in right if each.sizes == part.sizes[::-1]]
        rivals = [each for each in left if sorted(each.sizes) == sorted(part.sizes)]
        matches = same or turned
        if len(matches) == len(rivals) == 1 and len(part.sizes) <= 2:
            found.append((part, matches[0]))
    return found


def _singles(parts: list[Part], description: Description) -> list[Part]:
    return [
        Part("parameter", part.path, description.variables[name].shape, {role: array}, part.output)
        for part in parts
        for role, array in part.arrays.items()
        for name in names_of(array)[:1]
        if len(part.arrays) == 1
    ]


def _pairs(ours: Part, theirs: Part, convolved: set[int]) -> list[Pair]:
    """The pairs of variables of two parts, by their roles."""
    found = []
    pairs = [(role, array, theirs.arrays[role]) for role, array in ours.arrays.items() if role in theirs.arrays]
    if ours.kind == "parameter":  # of one variable, whose role each side names in its own way
        (array,), (other,) = ours.arrays.values(), theirs.arrays.values()
        pairs = [("", array, other)]
    for role, array, other in pairs:
        assert isinstance(array, TorchArray) and isinstance(other, KerasArray)
        steps = [*_permutation(ours, theirs, role, convolved), *other.steps]
        if ours.kind == "parameter" and ours.sizes != theirs.sizes:
            steps = [Step("transpose", tuple(reversed(range(len(ours.sizes)))))]
        found.append(Pair(other.name, Transformation(array.sources, array.joined, tuple(steps))))
    return found


def _permutation(ours: Part, theirs: Part, role: str, convolved: set[int]) -> list[Step]:
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
        return [Step("reshape", (ours.sizes[0], *before)), Step("transpose", moved), Step("reshape", ours.sizes)]
    if len(ours.sizes) != 1:
        return []
    return [Step("reshape", before), Step("transpose", (*window, 0)), Step("reshape", ours.sizes)]
