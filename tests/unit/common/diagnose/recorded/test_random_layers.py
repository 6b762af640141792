"""Tests of the layers that draw random numbers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.random_layers import find_changing_layers, find_random_layers


@pytest.mark.parametrize(
    ("kind", "is_random"),
    [("GaussianNoise", True), ("RandomFlip", True), ("GaussianDiffusion", False), ("RandomForestHead", False)],
)
def test_class_of_a_script_with_the_name_of_a_random_layer_draws_nothing(kind: str, is_random: bool) -> None:
    layer: Any = {"kind": kind, "path": "layer", "attributes": {}, "variables": {}, "training": True}
    side: Any = SimpleNamespace(layers=[layer], record=SimpleNamespace(facts={"model": {}}))
    assert find_random_layers(side) == (["layer"] if is_random else [])


def test_layers_whose_draws_change_nothing() -> None:
    """A crop to the size of the images draws, and a flip may."""
    images = np.arange(12.0).reshape(3, 4)
    calls = {path: SimpleNamespace(received=images, returned=x) for path, x in (("crop", images), ("flip", -images))}
    layers = [
        {"kind": kind, "path": path, "attributes": {}, "variables": {}, "training": True}
        for kind, path in (("RandomCrop", "crop"), ("RandomFlip", "flip"), ("RandomZoom", "not_recorded"))
    ]
    record = SimpleNamespace(facts={"model": {}}, steps=[1])
    side: Any = SimpleNamespace(layers=layers, record=record, read_layer_calls=lambda _: calls)
    assert find_changing_layers(side) == ["flip", "not_recorded"]
