"""Pairs of layers of two runs."""

from types import SimpleNamespace
from typing import Any, cast

from common.diagnose.layer_match import match_layers


def test_the_layers_of_a_keras_model_without_a_pytorch_model_are_paired() -> None:
    run = cast(Any, SimpleNamespace(config=SimpleNamespace(model=None)))
    layers = {"first/kernel": "first", "first/bias": "first", "block/norm/gamma": "block/norm"}
    matches = match_layers(run, run, layers, layers)
    assert [(match.name, match.path_a) for match in matches] == [("first", "first"), ("block/norm", "block/norm")]


def test_layers_are_paired_by_the_names_of_pytorch() -> None:
    run = cast(Any, SimpleNamespace(config=SimpleNamespace(model=None)))
    matches = match_layers(run, run, {"conv.0.weight": "conv.0"}, {"conv.0.weight": "conv2d/first"})
    assert [(match.name, match.title) for match in matches] == [("conv.0", "conv.0 | conv2d/first")]
