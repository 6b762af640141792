"""Layers and models that are paired without help, proven equal in float64, and equal layer by layer."""

from dataclasses import replace

import pytest

from common.map.pair_models import pair_models as pair_on_sides
from common.map.side import Side
from tests.unit.common.map.conftest import PairModels, Sides, build_request
from tests.unit.common.map.layers_alone import check_layers_alone
from tests.unit.common.map.planted_maps import PLANTED_MAPS, check_planted_map

pytestmark = pytest.mark.slow

FEATURES, STEPS = {"x": "float32[4,6]"}, {"x": "float32[3,5,6]"}
SERIES, IMAGES = {"x": "float32[2,9,channels=3]"}, {"x": "float32[2,8,8,channels=3]"}
VOLUMES = {"x": "float32[2,3,4,5,channels=2]"}
TOKENS = {"tokens": "int32[3,5]<11"}
WIDE = {"x": "float32[3,5,8]"}
MODELS = {
    "linear": FEATURES,
    "square": FEATURES,
    "gelu": FEATURES,
    "activations": FEATURES,
    "conv1d": SERIES,
    "conv2d": IMAGES,
    "conv3d": VOLUMES,
    "grouped": {"x": "float32[2,6,6,channels=4]"},
    "depthwise": {"x": "float32[2,9,9,channels=3]"},
    "depthwise1d": SERIES,
    "separable": IMAGES,
    "transposed1d": SERIES,
    "transposed2d": IMAGES,
    "transposed3d": VOLUMES,
    "enlarged": IMAGES,
    "branches": IMAGES,
    "embedding": TOKENS,
    "layer_norm": FEATURES,
    "rms_norm": FEATURES,
    "batch_norm": IMAGES,
    "batch_norm_1d": FEATURES,
    "group_norm": {"x": "float32[2,6,6,channels=4]"},
    "instance_norm": IMAGES,
    "prelu": IMAGES,
    "lstm": STEPS,
    "stacked_lstm": STEPS,
    "bidirectional_lstm": STEPS,
    "gru": STEPS,
    "bidirectional_gru": STEPS,
    "rnn": STEPS,
    "last_step": STEPS,
    "cells": STEPS,
    "self_attention": WIDE,
    "cross_attention": {"query": "float32[2,5,8]", "memory": "float32[2,7,6]"},
    "own_attention": WIDE,
    "fused_attention": WIDE,
    "fused_dense": WIDE,
    "transformer": WIDE,
    "tied": TOKENS,
    "plain": FEATURES,
    "flattened": IMAGES,
    "flattened_tokens": TOKENS,
    "cube": IMAGES,
    "normed_images": IMAGES,
    "normed_tokens": {"x": "float32[2,4,4]"},
    "upsampled": {"x": "float32[2,6,4,channels=3]"},
    "residual": {"images": "float32[2,6,6,channels=3]"},
    "two_inputs": {"tokens": "int32[3,4]<9", "numbers": "float32[3,3]"},
    "repeated": FEATURES,
    "scores": STEPS,
    "classes": FEATURES,
    "no_parameters": FEATURES,
    "all_frozen": FEATURES,
    "two_modes": FEATURES,
    "norm_in_evaluation": FEATURES,
}


NOTES = {  # by model: the notes of its proof that have this text
    "cube": "PyTorch's unused.weight, unused.bias: left out",
    "lstm": "freeze these terms at zero: layer.bias_hh_l0",
    "batch_norm": "72 / 71 times as large",
    "gru": None,  # no notes
}


@pytest.mark.parametrize("name", MODELS)
def test_is_paired_and_proven(sides: Sides, name: str) -> None:
    request = build_request(name, name, MODELS[name])
    models = pair_on_sides(sides["torch"], sides["tf"], request)
    assert models.parameter_map.unmatched_torch == models.parameter_map.unmatched_keras == []
    assert models.proof is not None
    assert models.proof.errors == []
    assert max(models.proof.measured.values()) < 1e-11
    assert len(models.proof.measured) == 4
    if name in NOTES:
        expected = NOTES[name]
        assert (expected or "") in "\n".join(models.proof.notes)
        assert bool(models.proof.notes) == (expected is not None)
    check_layers_alone(sides, request, models)
    if name in PLANTED_MAPS:
        check_planted_map(sides, models, PLANTED_MAPS[name])


def test_layers_of_padding_do_not_hide_connections(pair_models: PairModels) -> None:
    assert pair_models("branches", "branches", IMAGES, padded=True).proven


@pytest.mark.parametrize(("prove", "passes"), [(True, 4), (False, 0)])
def test_a_proof_computes_each_mode_once(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, prove: bool, passes: int
) -> None:
    """Arrays of layers are sent only if the models differ, or if they have dropout layers."""
    name = "batch_norm"
    functions: list[str] = []
    send = Side.send

    def record(side: Side, function: str, **arguments: object) -> None:
        functions.append(function)
        send(side, function, **arguments)

    monkeypatch.setattr(Side, "send", record)
    models = pair_on_sides(sides["torch"], sides["tf"], replace(build_request(name, name, MODELS[name]), prove=prove))
    assert models.proven == prove
    assert (functions.count("compute"), functions.count("calls")) == (passes, 0)
