"""Models with one difference: a layer or parameter that one of them lacks, another mask, other positions."""

from dataclasses import replace
from typing import Any

import pytest

from common.diagnose.findings import EQUAL, INHERITED, Stage
from common.map.pair_models import PairedModels, pair_models
from common.models.unpaired_variables import list_unpaired
from tests.unit.common.conftest import Sides
from tests.unit.common.map.conftest import build_request
from tests.unit.common.map.layers_alone import compare_layers_alone

pytestmark = pytest.mark.slow

NUMBERS, TOKENS = {"x": "float32[5,6]"}, {"tokens": "int32[4,7]<4"}


def compare(sides: Sides, factory: str, inputs: dict[str, str], **arguments: Any) -> tuple[PairedModels, Stage]:
    request = build_request(f"differing_torch:{factory}", f"differing_keras:{factory}", inputs, **arguments)
    request = replace(request, prove=False, allow_unpaired=True)
    models = pair_models(sides["torch"], sides["tf"], request)
    return models, compare_layers_alone(sides, request, models)


@pytest.mark.parametrize(
    ("lacking", "part", "paths"),
    [
        ("keras_lacks", "norm", {"torch": ["3.norm2"]}),
        ("torch_lacks", "norm", {"tf": ["layer_normalization_1"]}),
        ("torch_lacks", "scale", {"tf": ["scale"]}),
        ("keras_lacks", "dense", {"torch": ["5"]}),
        ("keras_lacks", "batch_norm", {"torch": ["1"]}),
        ("keras_lacks", "bias", {"torch": ["7"]}),
    ],
)
def test_only_the_layer_that_one_side_lacks_is_named(
    sides: Sides, lacking: str, part: str, paths: dict[str, list[str]]
) -> None:
    models, stage = compare(sides, "residual", NUMBERS, **{lacking: part})
    unpaired = list_unpaired(models)
    assert {side: [layer["path"] for layer in layers] for side, layers in unpaired.items()} == paths
    (layers,) = unpaired.values()
    assert layers[0]["is_whole"] == (part != "bias")
    assert (stage.verdict, stage.causes) == (INHERITED, [])


@pytest.mark.parametrize(
    ("variant", "cause", "sentence"),
    [
        ("", None, ""),
        ("unmasked", "attention_mask", "attention's mask is tokens != 0 in A and no mask in B"),
        ("reversed", "reversed_axis", "its indices are A's, reversed along axis 0"),
        ("shifted", "shifted_indices", "its indices are A's +1"),
    ],
)
def test_the_operation_within_a_layer_is_named(sides: Sides, variant: str, cause: str | None, sentence: str) -> None:
    _, stage = compare(sides, "attention", TOKENS, keras_variant=variant)
    if cause is None:
        assert (stage.verdict, stage.causes) == (EQUAL, [])
        return
    assert [(known.cause, known.confirmed) for known in stage.causes] == [(cause, True)]
    assert stage.causes[0].sentence.endswith(sentence)


@pytest.mark.parametrize("lacks", ["torch", "keras"])
def test_every_difference_after_the_layer_that_one_side_lacks_comes_from_it(sides: Sides, lacks: str) -> None:
    _, stage = compare(sides, "two_outputs", NUMBERS, lacks=lacks)
    assert (stage.verdict, stage.causes) == (INHERITED, [])
