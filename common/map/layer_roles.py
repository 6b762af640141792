"""Roles of layers in two models: what their neighbors are, so that parallel branches in another order can be paired.

The labels of a layer say what it is, and at every further level what the layers before and after it are. Equal labels
in both models mean equal surroundings (the refinement of colors of a graph).
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence

from common.map.description import Connection, LayerDescription
from common.map.sublayers import Sublayer

LEVELS = 8  # the number of layers before and after a layer that its last label depends on
SETTINGS = ("stride", "dilation")  # those that have the same values in both frameworks
Labels = Mapping[str, Hashable]  # by the path of the layer


class LayerRoles:
    """Labels of the layers of a model, one for each level.

    The first one is the same for all layers. The others depend on at least the next layers: a setting alone, such as a
    stride, may be the mistake that is looked for.
    """

    def __init__(self, sublayers: Sequence[Sublayer], layers: Sequence[LayerDescription]) -> None:
        """Compute the labels of the layers that have these sublayers."""
        connections = {layer.path: layer.connection for layer in layers if layer.connection is not None}
        kinds: dict[str, list[Hashable]] = defaultdict(list)
        for sublayer in sublayers:
            settings = tuple(_normalize(sublayer.settings.get(name, 1)) for name in SETTINGS)
            kinds[sublayer.path].append((sublayer.signature, settings))
        self._sources = {path: connection.source for path, connection in connections.items()}
        labels: Labels = {path: hash((tuple(kind), _get_sizes(connections, path))) for path, kind in kinds.items()}
        self.levels: list[Labels] = [dict.fromkeys(kinds, 0)]
        for _ in range(LEVELS):
            labels = self._refine(labels)
            self.levels.append(labels)

    def _refine(self, labels: Labels) -> Labels:
        """Return labels that depend on the labels of the layers before and after, too."""
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

    The deepest level decides at which both have the same labels. Sublayers of one label keep the order of execution.

    Args:
        torch_matches: Sublayers of one signature.
        keras_matches: As many sublayers of Keras with the same signature.
        torch_roles: The roles in PyTorch's model.
        keras_roles: The roles in Keras's model.
    """
    for torch_level, keras_level in zip(reversed(torch_roles.levels), reversed(keras_roles.levels), strict=True):
        torch_labels = [torch_level[sublayer.path] for sublayer in torch_matches]
        by_label: dict[Hashable, list[Sublayer]] = defaultdict(list)
        for sublayer in keras_matches:
            by_label[keras_level[sublayer.path]].append(sublayer)
        if Counter(torch_labels) == {label: len(sublayers) for label, sublayers in by_label.items()}:
            return [by_label[label].pop(0) for label in torch_labels]
    raise AssertionError("the first labels are equal")


def _normalize(setting: object) -> object:
    """Return a setting such as a stride as one number if it is the same along all axes."""
    if isinstance(setting, tuple) and len(set(setting)) == 1:
        return setting[0]
    return setting


def _get_sizes(connections: Mapping[str, Connection], path: str) -> tuple[int, ...]:
    return connections[path].received_sizes if path in connections else ()
