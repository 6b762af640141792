"""Data that the stages of a diagnosis share."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from common.diagnose.comparison import SideComparison


def test_parameters_that_b_lacks_are_unpaired() -> None:
    initial = dict.fromkeys(["separable.depthwise.weight", "separable.pointwise.weight", "extra.weight"], np.zeros(2))
    trained = {name: array for name, array in initial.items() if name != "extra.weight"}
    a: Any = SimpleNamespace(states=[SimpleNamespace(weights=initial), SimpleNamespace(weights=initial)])
    b: Any = SimpleNamespace(states=[SimpleNamespace(weights=initial), SimpleNamespace(weights=trained)])
    assert SideComparison(a, b, []).unpaired_parameters == ["extra.weight"]
