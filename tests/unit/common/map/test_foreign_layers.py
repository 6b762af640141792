"""Layers as libraries other than PyTorch and Keras write them: paired and proven without a map file."""

from dataclasses import replace

import numpy as np
import pytest

from common.map.differing_settings import describe_settings
from common.map.fused_projections import align_fused_projections
from common.map.pair_models import pair_models as pair_on_sides
from common.map.sublayers import Sublayer
from common.map.torch_layers import RECURRENT_KINDS, SIMPLE_KINDS
from common.map.transformation import TransformationStep, merge_steps, parse_transformation
from common.map.unmatched import describe_unmatched, summarize_unmatched
from tests.unit.common.conftest import Sides
from tests.unit.common.map.conftest import PairModels, build_request
from tests.unit.common.map.planted_maps import FOREIGN_PLANTED_MAPS, PLANTED_MAPS, check_planted_map

SEQUENCES, FEATURES, TOKENS = {"x": "float32[3,5,8]"}, {"x": "float32[4,6]"}, {"tokens": "int32[4,8]<11"}
PAIRS = [
    ("transposed_linear", FEATURES, {}),
    ("fused", SEQUENCES, {}),
    ("fused", SEQUENCES, {"by_head": True}),
    ("fused_transposed", SEQUENCES, {}),
    ("fused_groups", SEQUENCES, {}),
    ("pointwise", FEATURES, {}),
    ("separate", SEQUENCES, {}),
    ("gated", SEQUENCES, {}),
    ("gate_last", SEQUENCES, {}),
    ("float32_layer", FEATURES, {}),
    ("positions", TOKENS, {}),
    ("positions", TOKENS, {"first": 2}),
    ("norm_in_float32", SEQUENCES, {}),
    ("offset", {"x": "float32[3,5,6]"}, {}),
    ("without_head", FEATURES, {}),
    ("norms", SEQUENCES, {}),
    ("experts", SEQUENCES, {}),
    ("split_experts", SEQUENCES, {}),
    ("position_table", {"x": "float32[3,5,6]"}, {}),
]
WRONG_PAIRS = [  # with a part of the error
    ("fused_in_another_order", SEQUENCES, "the first layer whose output differs is output (PyTorch) and "),
    ("experts_in_another_order", SEQUENCES, "the first layer whose output differs is output (PyTorch) and "),
    (
        "small_weights",
        FEATURES,
        "is 0 (PyTorch) and sequential/dense (Keras), by 5.1e-01 of its norm; its input differs ",
    ),
    (
        "gelu",
        FEATURES,
        "PyTorch computes the exact GELU, Keras the tanh approximation of GELU after 0 (PyTorch) and ",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "inputs", "arguments"), PAIRS)
def test_a_pair_is_proven(sides: Sides, name: str, inputs: dict[str, str], arguments: dict[str, object]) -> None:
    request = build_request(f"foreign_torch:{name}", f"foreign_keras:{name}", inputs)
    models = pair_on_sides(sides["torch"], sides["tf"], replace(request, arguments=arguments))
    lines = describe_unmatched(models.parameter_map, models.torch_description, models.keras_description)
    assert models.proven, [lines, models.proof]
    planted = FOREIGN_PLANTED_MAPS.get(" ".join([name, *arguments]))
    if planted is not None:
        check_planted_map(sides, models, planted)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "inputs", "part"), WRONG_PAIRS)
def test_a_wrong_pair_is_refused(pair_models: PairModels, name: str, inputs: dict[str, str], part: str) -> None:
    models = pair_models(f"foreign_torch:{name}", f"foreign_keras:{name}", inputs)
    assert models.proof is not None
    (error,) = models.proof.errors
    assert part in error


@pytest.mark.slow
def test_the_epsilon_of_another_class_is_named(pair_models: PairModels) -> None:
    name = "norms_of_another_epsilon"
    models = pair_models(f"foreign_torch:{name}", f"foreign_keras:{name}", SEQUENCES)
    assert not models.proven
    (difference,) = describe_settings(models.parameter_map)
    assert (
        "epsilon is 1e-06 in PyTorch and 0.01 in Keras, in 2 (PyTorch) and sequential/rms_normalization_1" in difference
    )


@pytest.mark.slow
def test_separate_projections_in_a_wrong_order_are_refused(pair_models: PairModels) -> None:
    models = pair_models("foreign_torch:separate", "foreign_keras:separate", SEQUENCES, is_value_second=True)
    assert models.proof is not None
    (error,) = models.proof.errors
    assert "the first layer whose output differs is output (PyTorch) and " in error


@pytest.mark.slow
def test_an_unused_head_is_named(pair_models: PairModels) -> None:
    models = pair_models("foreign_torch:without_head", "foreign_keras:without_head", FEATURES)
    assert models.proof is not None
    (note,) = models.proof.notes
    assert "dense_2/kernel, " in note
    assert note.endswith("dense_2/bias: left out, since no output depends on them")


@pytest.mark.slow
def test_variables_of_a_kind_are_counted(pair_models: PairModels) -> None:
    models = pair_models("foreign_torch:with_biases", "foreign_keras:with_biases", FEATURES)
    (line,) = summarize_unmatched(models.parameter_map, models.torch_description, models.keras_description)
    assert line.startswith("not matched: Keras's 7 variables 'bias' of Dense layers, the first one ")
    assert models.agree_without_unmatched


def test_every_kind_has_a_planted_map() -> None:
    kinds = {"parameter", *(kind for kind, _ in SIMPLE_KINDS.values()), *RECURRENT_KINDS.values()}
    assert kinds == {planted.kind for planted in PLANTED_MAPS.values()}


def test_layers_of_coinciding_sizes_are_split_in_order() -> None:
    """Query, key and value together have as many outputs as the gate; only the order tells which layer is fused."""
    torch_sizes = [(64, 32), (32, 32), (128, 32), (32, 64)]
    keras_sizes = [(32, 32), (16, 32), (16, 32), (32, 32), (64, 32), (64, 32), (32, 64)]
    torch, keras = (
        [Sublayer("linear", str(place), size, {}) for place, size in enumerate(sizes)]
        for sizes in (torch_sizes, keras_sizes)
    )
    assert [sublayer.sizes for sublayer in align_fused_projections(torch, keras)] == keras_sizes


def test_unselected_elements_keep_their_values() -> None:
    transformation = parse_transformation("a | transpose 1 0 | rows 0 1")
    arrays = {"a": np.arange(6.0).reshape(2, 3)}
    transformation.to_torch(np.array([[7.0, 8.0]]), arrays)
    np.testing.assert_array_equal(arrays["a"], [[7, 1, 2], [8, 4, 5]])


def test_transposes_are_merged() -> None:
    turn, select = TransformationStep("transpose", (1, 2, 0)), TransformationStep("rows", (0, 1))
    assert merge_steps([turn, turn, turn]) == ()
    assert merge_steps([turn, turn, select]) == (TransformationStep("transpose", (2, 0, 1)), select)
