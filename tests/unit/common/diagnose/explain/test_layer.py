"""A layer whose numbers are none, or have fewer digits than its counterpart's."""

import numpy as np
import pytest

from common.diagnose.findings import Stage
from common.diagnose.observation import LayerPair, Model, Observation
from common.diagnose.stages.activations import compare_layers, disturbed_calls
from common.map.description import Call

RECEIVED, RETURNED = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
PAIR = LayerPair("layer norm", "norm", "norm", "norm")


def observed(returned: np.ndarray) -> Observation:
    return Observation([RETURNED], [RETURNED[:, 0]], {"norm": Call(RECEIVED, returned)}, {}, {})


def stage_of(a: np.ndarray, b: np.ndarray, precision: str, one_framework: bool = True) -> Stage:
    ours, theirs = observed(a), observed(b)
    model = Model(ours, ours, ours, theirs, theirs, [PAIR], {}, {}, precision, one_framework)
    return compare_layers("activations", model)


def in_bfloat16(array: np.ndarray) -> np.ndarray:
    return (array.view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_layer_that_rounds_more_is_named(precision: str) -> None:
    for a, b, side in ((RETURNED, in_bfloat16(RETURNED), "b"), (in_bfloat16(RETURNED), RETURNED, "a")):
        (cause,) = stage_of(a, b, precision).causes
        assert (cause.cause, cause.side, cause.tensor, cause.confirmed) == ("lower_precision", side, "norm", True)
        assert f"rounded to bfloat16 in {side.upper()}, to float32 on" in cause.sentence


def test_two_frameworks_may_round_other_layers_to_bfloat16() -> None:
    assert stage_of(RETURNED, in_bfloat16(RETURNED), "bfloat16", one_framework=False).verdict == "equal"


@pytest.mark.parametrize(("value", "what"), [(np.nan, "NaN"), (np.inf, "infinite")])
def test_what_is_not_finite_on_one_side_is_named(value: float, what: str) -> None:
    broken = RETURNED.copy()
    broken[1, 2:4] = value
    for a, b, side in ((RETURNED, broken, "b"), (broken, RETURNED, "a")):
        (cause,) = stage_of(a, b, "float32").causes
        assert (cause.cause, cause.side) == ("not_finite", side)
        assert cause.sentence.startswith(f"norm is {what} in {side.upper()} in 2 of 24 places")
    assert stage_of(broken, broken, "float32").verdict == "equal"


def test_rounding_is_no_difference() -> None:
    near = (RETURNED * (1 + 2e-7)).astype(np.float32)
    assert stage_of(RETURNED, near, "float32").verdict == "equal"
    assert stage_of(RETURNED, (RETURNED * (1 + 1e-4)).astype(np.float32), "float32").verdict == "differs"


def test_own_arrays_are_disturbed_in_their_own_last_place() -> None:
    ours = Observation([], [], {"norm": Call(np.arange(6), RETURNED)}, {}, {})
    call = disturbed_calls([PAIR], ours, seed=0)["norm"]
    assert call.received is None, "numbers of tokens stay as they are"
    assert call.returned is not None and call.returned.dtype == np.float32
    assert 0 < np.abs(call.returned / RETURNED - 1).max() < 3e-7
