"""Tests of sequences that PyTorch packs by their lengths, and that Keras masks."""

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.operation_names import LOSS
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor

SEQUENCES = np.random.default_rng(3).normal(size=(4, 5, 3))
IS_REAL = np.arange(5) < np.array([[5], [2], [3], [1]])


def _explain(a: OperationTrace, b: OperationTrace) -> Explanation:
    explanation = explain_operations(make_pair(a, b), "loss", LOSS, LOSS)
    assert explanation is not None
    return explanation


def _recur(x: np.ndarray, *masks: np.ndarray) -> np.ndarray:
    return np.cumsum(np.tanh(x), 1)


def _finish(script: Script, states: Tensor) -> OperationTrace:
    return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, states)))


def _pack() -> OperationTrace:
    script = Script(x=SEQUENCES)
    packed = script.call("pack_padded_sequence", lambda x: x[IS_REAL], script.inputs["x"])
    states = script.call("lstm", lambda x: np.cumsum(np.tanh(x), 0), packed)
    padded = script.call("pad_packed_sequence", lambda x: _recur(SEQUENCES) * IS_REAL[..., None], states)
    return _finish(script, padded)


def _mask(has_mask: bool, is_scaled: bool = False) -> OperationTrace:
    script = Script(x=SEQUENCES)
    x = script.inputs["x"]
    x = script.call("sinh", np.sinh, x) if is_scaled else x
    masks = [IS_REAL.view(Tensor)] if has_mask else []
    return _finish(script, script.call("LSTM", _recur, x, *masks))


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_mask_that_stands_for_packed_sequences_is_missing(side: str) -> None:
    traces = [_pack(), _mask(has_mask=False)]
    explanation = _explain(*(reversed(traces) if side == "A" else traces))
    assert (explanation.cause, explanation.side, explanation.confirmed) == ("mask_zero", side.lower(), True)
    assert explanation.sentence.startswith(f"loss: {'B' if side == 'A' else 'A'} packs the sequences in test_packed_")
    assert f" of {side} goes on over the padding, without a mask" in explanation.sentence


@pytest.mark.parametrize("is_reversed", [True, False])
def test_lines_that_pack_sequences_are_not_blamed_if_the_other_script_masks_them(is_reversed: bool) -> None:
    traces = [_pack(), _mask(has_mask=True, is_scaled=True)]
    explanation = _explain(*(reversed(traces) if is_reversed else traces))
    assert explanation.cause == ("missing_operation" if is_reversed else "added_operation")
    assert explanation.sentence.startswith(f"loss: B {'does not compute' if is_reversed else 'also computes'} sinh in ")
    assert "pack" not in explanation.sentence.replace(__file__.rpartition("/")[2], "")
