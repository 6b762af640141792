"""Tests of variables that are sums of different numbers of variables in A and in B."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.explain.moving_statistics import FirstStep
from common.diagnose.recorded.added_variables import find_added_variables

MOVE = np.random.default_rng(0).normal(size=8)
MATCHES: Any = [
    SimpleNamespace(title="kernel", names_a=("kernel",), names_b=("weight",)),
    SimpleNamespace(title="bias", names_a=("bias",), names_b=("bias_ih", "bias_hh")),
]


def _step(name: str, factor: float) -> FirstStep:
    return FirstStep(name, np.ones(8), 1 + MOVE, 1 + factor * MOVE)


@pytest.mark.parametrize(("common", "mentions_clipping"), [(1.0, False), (0.9, True)])
def test_a_norm_that_counts_each_term_moves_all_variables_less(common: float, mentions_clipping: bool) -> None:
    added = find_added_variables(MATCHES, [_step("kernel", common), _step("bias", 2 * common)])
    assert [*added.sentences] == ["bias"]
    assert added.moves_all == mentions_clipping
    assert ("clipped" in added.sentences["bias"]) == mentions_clipping
    assert "moves 2 times as far in B" in added.sentences["bias"]


@pytest.mark.parametrize(("kernel", "bias"), [(1.0, 1.0), (1.0, 1.8), (0.9, 2.0)])
def test_other_moves_have_no_explanation(kernel: float, bias: float) -> None:
    assert not find_added_variables(MATCHES, [_step("kernel", kernel), _step("bias", bias)]).sentences
