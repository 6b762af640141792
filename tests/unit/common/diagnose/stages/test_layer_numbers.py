"""A layer that returns NaN, infinite numbers, or numbers with fewer digits than its counterpart."""

import numpy as np
import pytest

from common.diagnose.findings import Stage
from common.diagnose.layer_match import LayerMatch
from common.diagnose.model_observations import ModelObservations
from common.diagnose.observation import Observation, measure_perturbation
from common.diagnose.stages.activations import compare_layers
from common.map.description import RecordedCall

RECEIVED, RETURNED = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
IN_BFLOAT16 = (RETURNED.view(np.uint32) & 0xFFFF0000).view(np.float32)
LAYER = LayerMatch("layer norm", "norm", "norm", "norm")


def compare(returned_a: np.ndarray, returned_b: np.ndarray, precision: str, is_one_framework: bool = True) -> Stage:
    a, b = (
        Observation([RETURNED], [RETURNED[:, 0]], {"norm": RecordedCall(RECEIVED, returned)}, {}, {})
        for returned in (returned_a, returned_b)
    )
    noise = measure_perturbation(a, a)
    return compare_layers(
        "activations", ModelObservations(a, noise, noise, b, b, [LAYER], {}, {}, precision, is_one_framework)
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_layer_that_rounds_more_is_named(precision: str) -> None:
    for a, b, side in ((RETURNED, IN_BFLOAT16, "b"), (IN_BFLOAT16, RETURNED, "a")):
        (cause,) = compare(a, b, precision).causes
        assert (cause.cause, cause.side, cause.tensor, cause.confirmed) == ("lower_precision", side, "norm", True)
        assert f"rounded to bfloat16 in {side.upper()}, to float32 on" in cause.sentence


def test_two_frameworks_may_round_other_layers_to_bfloat16() -> None:
    assert compare(RETURNED, IN_BFLOAT16, "bfloat16", is_one_framework=False).verdict == "equal"


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "NaN"), (np.inf, "infinite")])
def test_a_nonfinite_array_of_one_side_is_named(value: float, kind: str) -> None:
    broken = RETURNED.copy()
    broken[1, 2:4] = value
    for a, b, side in ((RETURNED, broken, "b"), (broken, RETURNED, "a")):
        (cause,) = compare(a, b, "float32").causes
        assert (cause.cause, cause.side) == ("not_finite", side)
        assert cause.sentence.startswith(f"norm is {kind} in {side.upper()} in 2 of 24 places")
    assert compare(broken, broken, "float32").verdict == "equal"


@pytest.mark.parametrize(("change", "verdict"), [(2e-7, "equal"), (1e-4, "differs")])
def test_rounding_is_no_difference(change: float, verdict: str) -> None:
    assert compare(RETURNED, (RETURNED * (1 + change)).astype(np.float32), "float32").verdict == verdict
