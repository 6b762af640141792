"""BatchNorm layers that receive a single value of each channel from an example."""

import math
from collections.abc import Mapping, Sequence

from common.map.description import LayerDescription, RecordedCall

Shape = tuple[int, ...]


def find_norms_of_single_values(
    layers: Sequence[LayerDescription], calls: Mapping[str, RecordedCall], statistics: Mapping[str, Shape], count: int
) -> list[str]:
    """Return the paths of BatchNorm layers that receive one value of each channel from an example.

    These layers cannot compute a variance from a batch of one example.

    Args:
        layers: The layers of the model that own variables.
        calls: The first calls of the layers in a forward pass, by path.
        statistics: The shapes of the moving statistics that training changes, by name; a frozen layer has none.
        count: The number of examples in the pass.
    """
    paths = []
    for layer in layers:
        channels = next((math.prod(statistics[name]) for name in layer.variables.values() if name in statistics), None)
        received = calls[layer.path].received if layer.path in calls else None
        if channels is not None and received is not None and received.size == count * channels:
            paths.append(layer.path)
    return paths
