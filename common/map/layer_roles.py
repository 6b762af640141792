"""Roles of layers: labels of their surroundings, which pair parallel branches in different orders.

A layer has a label at each level. The first labels describe the layer itself; at every further level the label also
depends on the labels of the layers before and after it. Layers with equal labels in both models have equal surroundings
(the refinement of colors of a graph).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby, permutations

from common.map.array_differences import normalize_setting
from common.map.description import Connection, LayerDescription
from common.map.sublayers import Sublayer

MAX_SIBLINGS = 4  # largest number of layers on one input whose orders are all tried
BEGINNING_SHARE = 0.5  # what words of which one begins with the other count, as a share of equal words
LEVELS = 8  # the number of layers before and after a layer that its last label depends on
FIRST_LEVELS = 3  # the number of levels before those that depend on the layers around a layer
SETTINGS = ("stride", "dilation")  # settings that have the same values in both frameworks
Labels = Mapping[str, Hashable]  # labels of one level, by the path of the layer


class LayerRoles:
    """Labels of the layers of a model, one for each level.

    At level 0 the label is the same for all layers, because a setting, such as a stride, may be the mistake that a user
    looks for. At level 1 the label is the settings of the sublayer, and at level 2 also the layer that it follows: the
    normalization of a shortcut follows another convolution than that of the main branch. At the other levels it belongs
    to the whole layer, and depends on more and more of the layers around it.
    """

    def __init__(self, sublayers: Sequence[Sublayer], layers: Sequence[LayerDescription]) -> None:
        """Compute the labels of the layers that have these sublayers."""
        connections = {layer.path: layer.connection for layer in layers if layer.connection is not None}
        kinds: dict[str, list[Hashable]] = defaultdict(list)
        for sublayer in sublayers:
            kinds[sublayer.path].append((sublayer.signature, _select_settings(sublayer)))
        self._words = {layer.path: _split_words(f"{layer.path} {layer.attribute}") for layer in layers}
        self._sources = {path: connection.sources for path, connection in connections.items()}
        self._kinds = {path: hash(tuple(kind)) for path, kind in kinds.items()}
        labels: Labels = {path: hash((tuple(kind), _get_sizes(connections, path))) for path, kind in kinds.items()}
        self._positions = {path: position for position, path in enumerate(kinds)}  # in the order of execution
        self._refined: list[Labels] = []
        for _ in range(LEVELS):
            labels = self._refine(labels)
            self._refined.append(labels)

    def get_label(self, sublayer: Sublayer, level: int) -> Hashable:
        """Return the label of a sublayer at a level, from 0 to LEVELS + 2."""
        if level > FIRST_LEVELS - 1:
            return self._refined[level - FIRST_LEVELS][sublayer.path]
        sources = frozenset(self._kinds.get(path) for path in self.get_sources(sublayer.path))
        return (0, _select_settings(sublayer), (_select_settings(sublayer), sources))[level]

    def get_sources(self, path: str) -> frozenset[str]:
        """Return the paths of the layers from whose outputs the input of a layer is computed, if any are known."""
        return self._sources.get(path, frozenset())

    def get_words(self, path: str) -> set[str]:
        """Return the words of the last name of the path of a layer, and of the attribute that holds it."""
        return self._words.get(path) or _split_words(path)

    def order_by_source(self, sublayers: list[Sublayer]) -> list[Sublayer]:
        """Return sublayers in the order in which the pass entered the layers whose outputs they receive.

        A functional model of Keras computes parallel branches side by side, and PyTorch one after the other.
        """
        return sorted(
            sublayers, key=lambda sublayer: sorted(self._positions[path] for path in self._sources[sublayer.path])
        )

    def knows_sources(self, sublayers: Sequence[Sublayer]) -> bool:
        """Check whether it is known for all sublayers which layer's output they receive."""
        sources = [self.get_sources(sublayer.path) for sublayer in sublayers]
        return all(sources) and all(paths <= self._positions.keys() for paths in sources)

    def _refine(self, labels: Labels) -> Labels:
        """Return the labels of the next level, which also depend on the labels of the layers before and after."""
        consumers: dict[str, list[Hashable]] = defaultdict(list)
        for path, sources in self._sources.items():
            for source in sources if path in labels else ():
                consumers[source].append(labels[path])
        return {
            path: hash(
                (label, _count(labels.get(source) for source in self.get_sources(path)), _count(consumers[path]))
            )
            for path, label in labels.items()
        }


def order_by_roles(
    torch_matches: Sequence[Sublayer],
    keras_matches: Sequence[Sublayer],
    torch_roles: LayerRoles,
    keras_roles: LayerRoles,
    known: Mapping[str, str],
) -> list[Sublayer]:
    """Return the sublayers of Keras in the order of their counterparts in PyTorch.

    The deepest level at which both models have the same labels decides. If none of those that depend on the layers
    around does, the labels that both have equally often decide: one layer of an attention in one model, and several in
    the other, change only the labels of their neighbors. Sublayers with the same label are ordered by the layers before
    them or, if these are not known, by execution.

    Args:
        torch_matches: Sublayers of one signature.
        keras_matches: As many sublayers of Keras with the same signature.
        torch_roles: The roles in PyTorch's model.
        keras_roles: The roles in Keras's model.
        known: Paths of layers of Keras by those of their counterparts in PyTorch, as far as an earlier pass shows them.
    """
    matches = _Matches(torch_matches, keras_matches, torch_roles, keras_roles)
    levels = range(FIRST_LEVELS + LEVELS)[::-1]
    for is_whole in (True, False):
        for level in levels[:LEVELS]:
            matches.pair_level(level, is_whole=is_whole)
    matches.pair_by_sources(known)
    for level in levels[LEVELS:]:
        matches.pair_level(level, is_whole=True)
    return [matches.counterparts[id(sublayer)] for sublayer in torch_matches]


class _Matches:
    """Sublayers of one signature, of which more and more are paired.

    Attributes:
        counterparts: The sublayer of Keras for each sublayer of PyTorch that is paired, by identity.
    """

    def __init__(
        self, torch: Sequence[Sublayer], keras: Sequence[Sublayer], torch_roles: LayerRoles, keras_roles: LayerRoles
    ) -> None:
        self.counterparts: dict[int, Sublayer] = {}
        self._torch, self._keras = [*torch], [*keras]  # those that are not paired
        self._torch_roles, self._keras_roles = torch_roles, keras_roles

    def pair_level(self, level: int, *, is_whole: bool) -> None:
        """Pair by the labels of a level.

        Args:
            level: The level.
            is_whole: Whether nothing is paired unless all labels agree. Otherwise layers are left out whose inputs come
                from no known layer: their labels may agree by chance.
        """
        labels_a, labels_b = (
            [
                roles.get_label(sublayer, level) if is_whole or roles.get_sources(sublayer.path) else frozenset()
                for sublayer in sublayers
            ]
            for roles, sublayers in ((self._torch_roles, self._torch), (self._keras_roles, self._keras))
        )
        if not is_whole or Counter(labels_a) == Counter(labels_b):
            self._pair(labels_a, labels_b)

    def pair_by_sources(self, known: Mapping[str, str]) -> None:
        """Pair by the layers whose outputs the sublayers receive. known: their paths in Keras by those in PyTorch."""
        paths = {*known.values()}
        of_torch = [self._torch_roles.get_sources(x.path) & known.keys() for x in self._torch]
        labels_a = [frozenset(known[path] for path in sources) for sources in of_torch]
        self._pair(labels_a, [self._keras_roles.get_sources(x.path) & paths for x in self._keras])

    def _pair(self, labels_a: Sequence[Hashable], labels_b: Sequence[Hashable]) -> None:
        """Pair the sublayers whose labels both models have equally often. An empty label says nothing."""
        counts_a, counts_b = Counter(labels_a), Counter(labels_b)
        for label in [x for x, count in counts_a.items() if counts_b[x] == count and x != frozenset()]:
            torch = [x for x, of_x in zip(self._torch, labels_a, strict=True) if of_x == label]
            keras = [x for x, of_x in zip(self._keras, labels_b, strict=True) if of_x == label]
            if self._torch_roles.knows_sources(torch) and self._keras_roles.knows_sources(keras):
                torch, keras = self._torch_roles.order_by_source(torch), self._keras_roles.order_by_source(keras)
            ordered = _order_siblings(torch, keras, self._torch_roles, self._keras_roles)
            self.counterparts |= {id(x): y for x, y in zip(torch, ordered, strict=True)}
        paired = {id(x) for x in self.counterparts.values()}
        self._torch = [x for x in self._torch if id(x) not in self.counterparts]
        self._keras = [x for x in self._keras if id(x) not in paired]


def _order_siblings(
    torch_matches: Sequence[Sublayer], ordered: list[Sublayer], torch_roles: LayerRoles, keras_roles: LayerRoles
) -> list[Sublayer]:
    """Return Keras's sublayers. Sublayers on one input are ordered so that their names are most like PyTorch's.

    Names are alike if they share words, as theta_f_fc and stack_theta_f do, or if words begin with others, as mus does
    with mu. The order stays if no other one is better.
    """

    def get_sources(number: int) -> tuple[frozenset[str], frozenset[str]]:
        return torch_roles.get_sources(torch_matches[number].path), keras_roles.get_sources(ordered[number].path)

    for sources, group in groupby(range(len(ordered)), get_sources):
        indices = list(group)
        if not all(sources) or not 2 <= len(indices) <= MAX_SIBLINGS:
            continue
        words = [torch_roles.get_words(torch_matches[index].path) for index in indices]
        siblings = max(  # if sums are equal, the first permutation, which is the present order
            permutations([ordered[index] for index in indices]),
            key=lambda choice: sum(
                _count_alike(a, keras_roles.get_words(b.path)) for a, b in zip(words, choice, strict=True)
            ),
        )
        ordered[indices[0] : indices[-1] + 1] = siblings
    return ordered


def _count_alike(a: set[str], b: set[str]) -> float:
    """Count the words that two names have in common. Words of which one begins with the other count less."""
    others_a, others_b = a - b, b - a
    beginnings = [x for x in others_a if any(x.startswith(y) or y.startswith(x) for y in others_b)]
    return len(a & b) + BEGINNING_SHARE * len(beginnings)


def _count(labels: Iterable[Hashable]) -> Hashable:
    """Return labels without their order."""
    return frozenset(Counter(labels).items())


def _split_words(path: str) -> set[str]:
    """Return the words of the last name of a path. Numbers count layers, and each framework has its own."""
    return set(re.findall("[a-z]+", re.split(r"[./]", path)[-1].lower()))


def _select_settings(sublayer: Sublayer) -> tuple[object, ...]:
    return tuple(normalize_setting(sublayer.settings.get(name, 1)) for name in SETTINGS)


def _get_sizes(connections: Mapping[str, Connection], path: str) -> tuple[int, ...]:
    return connections[path].received_sizes if path in connections else ()
