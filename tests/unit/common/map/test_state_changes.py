"""Variables after a pass, in both frameworks."""

import numpy as np
import pytest

from common.map.description import ComputedPass
from common.map.pair_variables import ParameterMap, VariablePair
from common.map.state_changes import compare_state
from common.map.transformation import parse_transformation


@pytest.mark.parametrize(("number", "is_equal"), [(np.nan, True), (2.0, False)])
def test_a_buffer_of_nan_is_equal_if_both_models_have_it(number: float, is_equal: bool) -> None:
    parameter_map = ParameterMap([VariablePair("layer/limit", parse_transformation("limit"))], [])
    torch_pass = ComputedPass({}, {}, updated={"limit": np.array([1.0, np.nan])}, changed=frozenset({"limit"}))
    keras_pass = ComputedPass({}, {}, updated={"layer/limit": np.array([1.0, number])})  # what it had before
    errors = compare_state(parameter_map, torch_pass, keras_pass, training=False, tolerance=1e-9)
    assert errors == [] if is_equal else errors[0].startswith("limit (PyTorch) and layer/limit (Keras): differ by inf")
