"""The features of a linear layer that a model divides into several axes, such as those of an image.

The two frameworks order these axes differently: channels-first in PyTorch, channels-last in Keras.
"""

from collections.abc import Collection, Mapping

from common.map.description import RecordedCall


def has_moved(torch: tuple[int, ...] | None, keras: tuple[int, ...] | None) -> bool:
    """Check whether the first axis of an example in PyTorch, its channels, is the last one in Keras."""
    return torch is not None and keras == (*torch[1:], torch[0])


def find_reshaped_layers(
    calls: Mapping[str, RecordedCall], linear_paths: Collection[str], shape: tuple[int, ...]
) -> tuple[str | None, list[str]]:
    """Return the linear layer that last returned an array of a shape, and the layers after it that kept the shape.

    Args:
        calls: The calls of layers by path, in the order in which they returned.
        linear_paths: The paths of the linear layers.
        shape: The shape [n, features] of an array that the model reshapes.
    """
    later_paths: list[str] = []  # layers after the linear one that return the same shape
    for path, call in reversed(list(calls.items())):
        if call.returned is None or call.returned.shape != shape:
            continue
        if path in linear_paths:
            return path, later_paths
        if call.received is not None and call.received.shape == shape:
            later_paths.append(path)
    return None, []
