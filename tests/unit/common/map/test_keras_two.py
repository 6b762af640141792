"""Keras 2 models are paired with PyTorch's models and with the same models of Keras 3, proven, and trained."""

from importlib.util import find_spec

import pytest

from common.map.pair_models import PairedModels, describe_models, pair_models
from tests.unit.common.conftest import Sides
from tests.unit.common.map.conftest import build_request

# To import tf_keras here would import TensorFlow into every worker of the tests.
has_keras_two = find_spec("tf_keras") is not None
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_keras_two, reason="needs Keras 2: pip install tf_keras")]

IMAGES, TOKENS = {"images": "float32[4,8,8,channels=3]"}, {"tokens": "int32[4,5]<20"}
PADDED = {**TOKENS, "real": "int32[4,5]<2"}


def pair(sides: Sides, torch: str, keras: str, inputs: dict[str, str]) -> PairedModels:
    request = build_request(f"keras_two_models:{torch}", f"keras_two_models:{keras}", inputs)
    return pair_models(sides["torch"], sides["tf"], request)


@pytest.mark.parametrize(
    ("torch", "keras", "inputs"), [("Images", "images_two", IMAGES), ("Tokens", "tokens_two", TOKENS)]
)
def test_keras_2_computes_the_same_as_pytorch(sides: Sides, torch: str, keras: str, inputs: dict[str, str]) -> None:
    models = pair(sides, torch, keras, inputs)
    assert models.proof is not None
    assert not models.proof.errors
    assert max(models.proof.measured.values()) < 1e-10
    description = models.keras_description
    assert description.is_keras_two
    assert len(description.dropouts) == len(description.statistics) / 2 == (keras == "images_two")
    assert description.unaligned_noise == description.unsupported == description.unused == []


@pytest.mark.parametrize(
    ("model", "inputs", "layer"),
    [("gates", {"x": "float32[4,5,4]"}, "lstm"), ("padded", PADDED, "multi_head_attention")],
)
def test_what_keras_3_computes_differently_is_named(
    sides: Sides, model: str, inputs: dict[str, str], layer: str
) -> None:
    models = pair(sides, f"{model}_three", f"{model}_two", inputs)
    assert models.proof is not None
    assert models.proof.measured["outputs in evaluation mode"] > 0.01
    assert f"the first layer whose output differs is {layer}" in models.proof.errors[0]


def test_what_training_would_lose_is_named(sides: Sides) -> None:
    request = build_request("", "keras_two_models:flawed_two", TOKENS)
    assert sorted(describe_models({"tf": sides["tf"]}, request)["tf"].unsupported) == [
        "layer dense has an activity regularizer (L1), whose loss training does not add; remove it",
        "variable dense/bias has a constraint (MaxNorm), which training does not apply; remove it",
        "variable dense/kernel has a regularizer (L2), whose loss training does not add; remove it",
    ]
