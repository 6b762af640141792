"""The stage "layers": layers and parameters that one of two models lacks."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from common.diagnose.findings import DIFFERS, Stage
from common.diagnose.stages.unpaired_layers import compare_layer_lists
from common.map.unpaired_layers import UnpairedLayer

NORM: UnpairedLayer = {"path": "norm2", "kind": "LayerNorm", "variables": ["norm2.weight"], "is_whole": True}
HEAD: UnpairedLayer = {"path": "head", "kind": "Linear", "variables": ["head.bias"], "is_whole": False}
TABLE = np.arange(6.0).reshape(2, 3)


def compare(a: list[UnpairedLayer], b: list[UnpairedLayer], weights_a: dict[str, np.ndarray]) -> list[Stage]:
    runs = [SimpleNamespace(states=[SimpleNamespace(weights=weights)]) for weights in (weights_a, {"table": TABLE})]
    comparison: Any = SimpleNamespace(a=runs[0], b=runs[1], unpaired={"a": a, "b": b})
    return compare_layer_lists(comparison)


def test_a_layer_and_a_parameter_without_a_counterpart_are_causes() -> None:
    (stage,) = compare([NORM], [HEAD], {})
    assert stage.verdict == DIFFERS
    assert [(cause.cause, cause.sentence, cause.confirmed) for cause in stage.causes] == [
        ("missing_layer", "norm2: B has no counterpart of this layer (LayerNorm)", True),
        ("missing_parameter", "head.bias: A has no counterpart of this bias of a layer (Linear)", True),
    ]


def test_layers_of_one_kind_have_other_sizes() -> None:
    squeeze: UnpairedLayer = {"path": "se.fc", "kind": "Linear", "variables": ["se.fc.weight"], "is_whole": True}
    dense: UnpairedLayer = {"path": "dense", "kind": "Dense", "variables": ["table"], "is_whole": True}
    (stage,) = compare([squeeze, NORM], [dense], {"se.fc.weight": np.ones((4, 16))})
    assert [(cause.cause, cause.sentence) for cause in stage.causes] == [
        (
            "layer_sizes",
            "se.fc (Linear) of A has weight [4, 16], dense (Dense) of B has table [2, 3]: other sizes or another "
            "number of groups",
        ),
        ("missing_layer", "norm2: B has no counterpart of this layer (LayerNorm)"),
    ]
    (stage,) = compare([squeeze, squeeze], [dense], {})
    assert {cause.cause for cause in stage.causes} == {"missing_layer"}


def test_models_with_the_same_layers_have_no_such_stage() -> None:
    assert compare([], [], {}) == []


def test_a_tied_parameter_is_left_to_the_stage_of_gradients() -> None:
    output: UnpairedLayer = {"path": "output", "kind": "Linear", "variables": ["output.weight"], "is_whole": True}
    (stage,) = compare([output], [], {"table": TABLE, "output.weight": TABLE})
    assert stage.causes == []


def test_a_layer_with_the_name_of_a_paired_one_is_not_left_out() -> None:
    squeeze: UnpairedLayer = {"path": "fc", "kind": "Linear", "variables": ["fc.weight"], "is_whole": True}
    dense: UnpairedLayer = {"path": "dense", "kind": "Dense", "variables": ["table"], "is_whole": True}
    norm: UnpairedLayer = {"path": "fc", "kind": "LayerNormalization", "variables": ["fc/gamma"], "is_whole": True}
    (stage,) = compare([squeeze], [dense, norm], {"fc.weight": np.ones((4, 16))})
    assert [cause.cause for cause in stage.causes] == ["layer_sizes", "missing_layer"]
