"""Layers and models that are paired without help and proven equal in float64."""

import pytest

from tests.unit.common.map.conftest import PairModels

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


@pytest.mark.parametrize("name", MODELS)
def test_is_paired_and_proven(pair_models: PairModels, name: str) -> None:
    found = pair_models(name, name, MODELS[name])
    assert found.parameter_map.unmatched_torch == found.parameter_map.unmatched_keras == []
    assert found.proof is not None
    assert found.proof.errors == []
    assert max(found.proof.measured.values()) < 1e-11
    assert len(found.proof.measured) == 4


def test_what_the_forward_pass_does_not_call_is_noted(pair_models: PairModels) -> None:
    found = pair_models("cube", "cube", IMAGES)
    assert found.proof is not None
    assert any(note.startswith("PyTorch's unused.weight, unused.bias: left out") for note in found.proof.notes)


def test_two_biases_are_noted(pair_models: PairModels) -> None:
    found = pair_models("lstm", "lstm", STEPS)
    assert found.proof is not None
    assert "set to zero and freeze layer.bias_hh_l0" in found.proof.notes[0]
    assert pair_models("gru", "gru", STEPS).proof.notes == []  # type: ignore[union-attr]


def test_the_biased_variance_is_noted(pair_models: PairModels) -> None:
    found = pair_models("batch_norm", "batch_norm", IMAGES)
    assert found.proof is not None
    assert "72 / 71 times as large" in found.proof.notes[0]
