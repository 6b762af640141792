"""Tests of the elements of variables that the stage "state" compares."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.stages.state import _update_compared

Gradients = Mapping[str, np.ndarray]


def find_compared(a: Gradients, b: Gradients, is_skipped: bool = False) -> dict[str, np.ndarray | None]:
    """Return which elements are compared after one step with these gradients."""

    def make_match(name: str) -> SimpleNamespace:
        def read(arrays: Gradients, is_gradient: bool) -> np.ndarray:
            return arrays[name]

        return SimpleNamespace(title=name, read_a=read, read_b=read)

    def make_side(gradients: Gradients) -> SimpleNamespace:
        return SimpleNamespace(
            gradients=SimpleNamespace(read_reduced=lambda step: gradients),
            get_facts=lambda step: {"skipped": is_skipped},
        )

    variables = [make_match(name) for name in a]
    pair = SimpleNamespace(sides=(make_side(a), make_side(b)), models=SimpleNamespace(variables=variables))
    compared: dict[str, np.ndarray | None] = {}
    _update_compared(compared, {}, cast(RecordPair, pair), 1)
    return compared


@pytest.mark.parametrize("is_skipped", [False, True])
def test_an_overflowed_gradient_excludes_no_other_variable(is_skipped: bool) -> None:
    gradients = {"weight": np.ones(3), "overflowed": np.full(3, np.inf)}
    compared = find_compared(gradients, gradients, is_skipped)
    assert ("weight" in compared) != is_skipped
    assert is_skipped or np.all(cast(np.ndarray, compared["weight"]))


@pytest.mark.parametrize(("factor", "is_compared"), [(1.0, True), (-3.0, False)])
def test_small_gradients_are_compared_if_they_agree(factor: float, is_compared: bool) -> None:
    """Rounding errors of two sides do not agree. Small gradients that agree follow from the computation."""
    small = np.array([1e-9, 2e-9, -1e-9])
    compared = find_compared({"weight": np.ones(3), "small": small}, {"weight": np.ones(3), "small": factor * small})
    assert np.all(cast(np.ndarray, compared["small"])) == is_compared


def test_rounding_errors_in_a_part_of_a_variable_are_not_compared() -> None:
    """The biases of queries, keys and values may be one variable, in which those of the keys have no gradient."""
    bias_a, bias_b = np.array([1.0, 0.0, 1e-10, 2e-10, -1e-10]), np.array([1.0, 0.0, 1e-10, -3e-10, 2e-10])
    compared = find_compared({"bias": bias_a}, {"bias": bias_b})
    assert cast(np.ndarray, compared["bias"]).tolist() == [True, True, False, False, False]
