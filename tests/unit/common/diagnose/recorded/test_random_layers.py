"""Tests of the layers that draw random numbers."""

from types import SimpleNamespace
from typing import Any

import pytest

from common.diagnose.recorded.random_layers import find_random_layers


@pytest.mark.parametrize(
    ("kind", "is_random"),
    [("GaussianNoise", True), ("RandomFlip", True), ("GaussianDiffusion", False), ("RandomForestHead", False)],
)
def test_class_of_a_script_with_the_name_of_a_random_layer_draws_nothing(kind: str, is_random: bool) -> None:
    layer: Any = {"kind": kind, "path": "layer", "attributes": {}, "variables": {}, "training": True}
    side: Any = SimpleNamespace(layers=[layer], record=SimpleNamespace(facts={"model": {}}))
    assert find_random_layers(side) == (["layer"] if is_random else [])
