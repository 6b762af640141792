"""Every pair that is proven equal is also equal layer by layer, whatever a layer is on either side.

test_pairs.py checks the same of its pairs, so that they are paired only once.
"""

from dataclasses import replace

import numpy as np
import pytest

from common.map.pair_models import pair_models
from tests.unit.common.map.conftest import Sides, build_request
from tests.unit.common.map.layers_alone import check_layers_alone
from tests.unit.common.map.test_pairs import STEPS, TOKENS, WIDE

pytestmark = pytest.mark.slow

ENDS_IN_PADDING = {"tokens": np.array([[3, 4, 0, 0, 0], [5, 1, 2, 9, 7], [8, 0, 0, 0, 0]], np.int32)}
MASKED = {"tokens": "int32[4,12]>0<20", "tokens_mask": "int32[4,12,prefix]"}
SAME_NAMES = {  # factories of composite_torch and composite_keras, by name
    "grouped_attention": WIDE,
    "decoder": {"tgt": "float32[3,5,8]", "memory": "float32[3,7,8]"},
    "stacked": STEPS,
    "stacked_bidirectional": STEPS,
    "backwards": STEPS,
    "separable": {"x": "float32[2,7,8,channels=4]"},
    "positions": {"x": "float32[4,5,8]"},
    "masked_states": TOKENS,
}
EXAMPLES = {
    "gpt": {"input_ids": "int32[4,24]<256"},
    "hf": MASKED,
    "lstm": MASKED,
    "resnet": {"images": "float32[4,16,16,channels=1]"},
    "tabular": {"numbers": "float32[4,9]", "sex": "int32[4]<2"},
}
PAIRS: dict[str, tuple[str, str, dict[str, str], dict[str, str]]] = {  # factories, inputs, arguments
    **{
        f"{variant} attention": ("composite_torch:attention", "composite_keras:attention", WIDE, {"variant": variant})
        for variant in ("causal", "padded", "scores", "cross", "time_first")
    },
    "attention of four layers": ("composite_torch:attention", "composite_keras:own_attention", WIDE, {}),
    **{name: (f"composite_torch:{name}", f"composite_keras:{name}", inputs, {}) for name, inputs in SAME_NAMES.items()},
    **{
        f"example {name}": (f"examples.{name}.model_torch:build", f"examples.{name}.model_keras:build", inputs, {})
        for name, inputs in EXAMPLES.items()
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_proven_models_are_equal_layer_by_layer(sides: Sides, name: str) -> None:
    torch, keras, inputs, arguments = PAIRS[name]
    request = replace(build_request(torch, keras, inputs), arguments=arguments)
    if name == "masked_states":
        request = replace(request, arrays=ENDS_IN_PADDING)
    models = pair_models(sides["torch"], sides["tf"], request)
    assert models.proven, models.proof
    check_layers_alone(sides, request, models)
