"""Tests of the search for BatchNorm layers that get one value of each channel from an example."""

import numpy as np
import pytest

from common.map.description import LayerDescription, RecordedCall
from common.map.single_values import find_norms_of_single_values

LAYER = LayerDescription("BatchNormalization", "norm", {}, {"gamma": "norm/gamma", "moving_mean": "norm/moving_mean"})
STATISTICS = {"norm/moving_mean": (4,)}


@pytest.mark.parametrize(
    ("shape", "is_listed"),
    [((3, 4), True), ((3, 1, 1, 4), True), ((3, 4, 1, 1), True), ((3, 5, 5, 4), False), ((3 * 16, 4), False)],
)
def test_layers_of_features_and_of_pooled_images_are_listed(shape: tuple[int, ...], is_listed: bool) -> None:
    """The last case is points of an example that the model has moved to the axis of the examples."""
    calls = {"norm": RecordedCall(np.zeros(shape), None)}
    assert find_norms_of_single_values([LAYER], calls, STATISTICS, 3) == (["norm"] if is_listed else [])


def test_layers_that_are_frozen_or_not_called_are_not_listed() -> None:
    calls = {"norm": RecordedCall(np.zeros((3, 4)), None)}
    assert find_norms_of_single_values([LAYER], calls, {}, 3) == []
    assert find_norms_of_single_values([LAYER], {}, STATISTICS, 3) == []
