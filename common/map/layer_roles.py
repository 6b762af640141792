"""Roles of layers: labels of their surroundings, which pair parallel branches in different orders.

A layer has a label at each level. The first labels describe the layer itself; at every further level the label also
depends on the labels of the layers before and after it. Layers with equal labels in both models have equal surroundings
(the refinement of colors of a graph).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby, permutations

from common.map.array_differences import normalize_setting
from common.map.description import Connection, LayerDescription
from common.map.sublayers import Sublayer

MAX_SIBLINGS = 4  # largest number of layers on one input whose orders are all tried
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
        self._sources = {path: connection.source for path, connection in connections.items()}
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
        source = self._kinds.get(self._sources.get(sublayer.path) or "")
        return (0, _select_settings(sublayer), (_select_settings(sublayer), source))[level]

    def get_source(self, path: str) -> str | None:
        """Return the path of the layer whose output a layer receives, if that is known."""
        return self._sources.get(path)

    def order_by_source(self, sublayers: list[Sublayer]) -> list[Sublayer]:
        """Return sublayers in the order in which the pass entered the layers whose outputs they receive.

        A functional model of Keras computes parallel branches side by side, and PyTorch one after the other.
        """
        return sorted(sublayers, key=lambda sublayer: self._positions[self._sources[sublayer.path] or ""])

    def knows_sources(self, sublayers: Sequence[Sublayer]) -> bool:
        """Check whether it is known for all sublayers which layer's output they receive."""
        return all(self._sources.get(sublayer.path) in self._positions for sublayer in sublayers)

    def _refine(self, labels: Labels) -> Labels:
        """Return the labels of the next level, which also depend on the labels of the layers before and after."""
        consumers: dict[str, list[Hashable]] = defaultdict(list)
        for path, source in self._sources.items():
            if source is not None and path in labels:
                consumers[source].append(labels[path])
        return {
            path: hash((label, labels.get(self._sources.get(path) or ""), frozenset(Counter(consumers[path]).items())))
            for path, label in labels.items()
        }


def order_by_roles(
    torch_matches: Sequence[Sublayer],
    keras_matches: Sequence[Sublayer],
    torch_roles: LayerRoles,
    keras_roles: LayerRoles,
) -> list[Sublayer]:
    """Return the sublayers of Keras in the order of their counterparts in PyTorch.

    The deepest level at which both models have the same labels decides. Sublayers with the same label are ordered by
    the layers before them or, if these are not known, by execution.

    Args:
        torch_matches: Sublayers of one signature.
        keras_matches: As many sublayers of Keras with the same signature.
        torch_roles: The roles in PyTorch's model.
        keras_roles: The roles in Keras's model.
    """
    for level in reversed(range(FIRST_LEVELS + LEVELS)):
        torch_groups = _group(torch_matches, torch_roles, level)
        keras_groups = _group(keras_matches, keras_roles, level)
        if {label: len(group) for label, group in torch_groups.items()} == {
            label: len(group) for label, group in keras_groups.items()
        }:
            counterparts: dict[int, Sublayer] = {}
            for label, group in torch_groups.items():
                torch_group, keras_group = group, keras_groups[label]
                if torch_roles.knows_sources(group) and keras_roles.knows_sources(keras_group):
                    torch_group, keras_group = (
                        torch_roles.order_by_source(torch_group),
                        keras_roles.order_by_source(keras_group),
                    )
                ordered = _order_siblings(torch_group, keras_group, torch_roles, keras_roles)
                counterparts |= {id(torch): keras for torch, keras in zip(torch_group, ordered, strict=True)}
            return [counterparts[id(sublayer)] for sublayer in torch_matches]
    raise AssertionError("the first labels are equal")


def _group(sublayers: Sequence[Sublayer], roles: LayerRoles, level: int) -> dict[Hashable, list[Sublayer]]:
    """Return the sublayers by label."""
    groups: dict[Hashable, list[Sublayer]] = defaultdict(list)
    for sublayer in sublayers:
        groups[roles.get_label(sublayer, level)].append(sublayer)
    return groups


def _order_siblings(
    torch_matches: Sequence[Sublayer], ordered: list[Sublayer], torch_roles: LayerRoles, keras_roles: LayerRoles
) -> list[Sublayer]:
    """Return Keras's sublayers. Sublayers on one input are ordered so that their names are most like PyTorch's.

    Names are alike if they share words, as theta_f_fc and stack_theta_f do. The order stays if no other one is better.
    """

    def get_sources(number: int) -> tuple[str | None, str | None]:
        return torch_roles.get_source(torch_matches[number].path), keras_roles.get_source(ordered[number].path)

    for sources, group in groupby(range(len(ordered)), get_sources):
        indices = list(group)
        if None in sources or not 2 <= len(indices) <= MAX_SIBLINGS:
            continue
        words = [_split_words(torch_matches[index].path) for index in indices]
        siblings = max(  # if sums are equal, the first permutation, which is the present order
            permutations([ordered[index] for index in indices]),
            key=lambda choice: sum(len(a & _split_words(b.path)) for a, b in zip(words, choice, strict=True)),
        )
        ordered[indices[0] : indices[-1] + 1] = siblings
    return ordered


def _split_words(path: str) -> set[str]:
    """Return the words of the last name of a path. Numbers count layers, and each framework has its own."""
    return set(re.findall("[a-z]+", re.split(r"[./]", path)[-1].lower()))


def _select_settings(sublayer: Sublayer) -> tuple[object, ...]:
    return tuple(normalize_setting(sublayer.settings.get(name, 1)) for name in SETTINGS)


def _get_sizes(connections: Mapping[str, Connection], path: str) -> tuple[int, ...]:
    return connections[path].received_sizes if path in connections else ()
