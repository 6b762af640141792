"""Connections between the layers of a model: which layer's output each one receives, found by its values."""

from collections.abc import Collection, Hashable, Mapping

import numpy as np

from common.map.description import Connection, RecordedCall


def find_connections(paths: Collection[str], calls: Mapping[str, RecordedCall]) -> dict[str, Connection]:
    """Return the connections of the layers at `paths`.

    ReLU may lie between two connected layers. Other code without variables breaks a connection, as a layer and as a
    function, because one model may have it as a layer and the other as a function.

    Args:
        paths: The paths of the layers that own variables.
        calls: The first calls of all layers of a pass, in the order in which they returned.
    """
    connections: dict[str, Connection] = {}
    sources: dict[Hashable, str] = {}  # the layer that an array comes from
    for path, call in calls.items():
        source = None if call.received is None else sources.get(_identify(call.received))
        if path in paths:
            sizes = () if call.received is None else tuple(sorted(call.received.shape[1:]))
            connections[path] = Connection(sizes, source)
        if path in paths and call.returned is not None:
            for array in (call.returned, np.maximum(call.returned, 0)):
                sources.setdefault(_identify(array), path)
    return connections


def _identify(array: np.ndarray) -> Hashable:
    """Return a key that only equal arrays share."""
    return array.shape, hash(np.ascontiguousarray(array + 0.0).tobytes())  # + 0.0 turns -0.0 into 0.0
