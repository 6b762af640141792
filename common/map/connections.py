"""Connections between the layers of a model: a layer receives the output of the layer that returned the same values."""

from collections.abc import Collection, Hashable, Mapping

import numpy as np

from common.map.description import Connection, RecordedCall


def find_connections(
    paths: Collection[str], calls: Mapping[str, RecordedCall], convolutions: Mapping[str, int]
) -> dict[str, Connection]:
    """Return the connections of the layers at `paths`.

    ReLU may lie between two connected layers. Other code without variables breaks a connection, as a layer and as a
    function, because one model may have it as a layer and the other as a function. A padding with zeros before a
    convolution does not count: one model may have it as a layer, and the other as a setting of the convolution.

    Args:
        paths: The paths of the layers that own variables.
        calls: The first calls of all layers of a pass, in the order in which they returned.
        convolutions: The axis of the channels in the input of each convolution, by its path.
    """
    connections: dict[str, Connection] = {}
    sources: dict[Hashable, str] = {}  # the layer that an array comes from
    # The connection to the layer that an array comes from, by the array without the zeros at its ends
    cropped_sources: dict[Hashable, Connection] = {}
    channel_axes = set(convolutions.values())
    for path, call in calls.items():
        if path not in paths:
            continue
        if call.received is None:
            connections[path] = Connection(())
        elif path in convolutions:
            cropped = _crop_zeros(call.received, convolutions[path])
            connections[path] = cropped_sources.get(_identify(cropped), Connection(_sort_sizes(cropped)))
        else:
            source = sources.get(_identify(call.received))
            connections[path] = Connection(_sort_sizes(call.received), frozenset([source] if source else []))
        if call.returned is not None:
            for array in (call.returned, np.maximum(call.returned, 0)):
                sources.setdefault(_identify(array), path)
                for axis in channel_axes:  # the array may have zeros at its ends itself, such as after ReLU
                    connection = Connection(_sort_sizes(array), frozenset([path]))
                    cropped_sources.setdefault(_identify(_crop_zeros(array, axis)), connection)
    return connections


def _sort_sizes(array: np.ndarray) -> tuple[int, ...]:
    return tuple(sorted(array.shape[1:]))


def _crop_zeros(array: np.ndarray, channel_axis: int) -> np.ndarray:
    """Return an array without the zeros at the ends of its axes. The axes of examples and channels stay as they are."""
    for axis in set(range(1, array.ndim)) - {channel_axis % max(array.ndim, 1)}:
        slices = np.moveaxis(array, axis, 0)
        first = next((i for i in range(len(slices)) if slices[i].any()), None)
        if first is not None:
            last = next(i for i in reversed(range(len(slices))) if slices[i].any())
            array = np.moveaxis(slices[first : last + 1], 0, axis)
    return array


def _identify(array: np.ndarray) -> Hashable:
    """Return a key that only equal arrays share."""
    return array.shape, hash(np.ascontiguousarray(array + 0.0).tobytes())  # + 0.0 turns -0.0 into 0.0
