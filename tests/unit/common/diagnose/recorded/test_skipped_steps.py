"""Test that gradients that overflowed leave the comparison of the variables as it was."""

from types import SimpleNamespace

import numpy as np
import pytest

from common.diagnose.recorded.stages.state import _update_compared


@pytest.mark.parametrize("is_skipped", [False, True])
def test_an_overflowed_gradient_excludes_no_other_variable(is_skipped):
    gradients = {"weight": np.ones(3), "overflowed": np.full(3, np.inf)}
    side = SimpleNamespace(
        read_reduced_gradients=lambda step: gradients, get_facts=lambda step: {"skipped": is_skipped}
    )

    def read(arrays, is_gradient):
        return arrays["weight"]

    match = SimpleNamespace(title="weight", read_a=read, read_b=read)
    pair = SimpleNamespace(sides=(side, side), models=SimpleNamespace(variables=[match]))
    compared = {}
    _update_compared(compared, {}, pair, 1)
    assert ("weight" in compared) != is_skipped
    assert is_skipped or compared["weight"].all()
