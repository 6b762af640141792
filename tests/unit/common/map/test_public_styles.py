"""Models in the styles of public repositories: pairs that are proven, and mistakes that are refused by name."""

import pytest

from common.errors import UserError
from tests.unit.common.map.conftest import PairModels

pytestmark = pytest.mark.slow

FEATURES, STEPS = {"x": "float32[4,6]"}, {"x": "float32[4,5,6]"}
MODELS = {
    "tagger": STEPS,
    "generator": FEATURES,
    "stacks": FEATURES,
    "branches": FEATURES,
    "interaction": STEPS,
    "constants": FEATURES,
    "text_network": {"x": "float32[4,9,6]"},
    "shortcut": {"x": "float32[4,8,8,channels=4]"},
    "fourier": STEPS,
    "scaled_branches": {"x": "float32[4,8,8,channels=4]"},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_a_public_style_is_proven(pair_models: PairModels, name: str) -> None:
    models = pair_models(f"public_torch:{name}", f"public_keras:{name}", MODELS[name])
    assert models.parameter_map.is_complete
    assert models.proof is not None
    assert models.proof.errors == []
    assert len(models.proof.notes) <= 1


@pytest.mark.parametrize("style", ["hooks", "parametrizations"])
def test_weight_norm_is_paired_with_a_layer_of_ones_own(pair_models: PairModels, style: str) -> None:
    inputs = {"x": "float32[4,9,channels=3]"}
    models = pair_models("public_torch:weight_norm", "public_keras:weight_norm", inputs, style=style)
    assert models.proven


@pytest.mark.parametrize(("kind", "expected"), [("linear", "are not trained, copied or saved"), ("dropout", "mode")])
def test_layers_that_pytorch_does_not_register_are_refused(pair_models: PairModels, kind: str, expected: str) -> None:
    with pytest.raises(UserError, match=rf"blocks\.first\.0 \(\w+\) is in a list.*{expected}; use nn.ModuleList"):
        pair_models("public_torch:unregistered", "public_keras:unregistered", FEATURES, kind=kind)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sampler", "PyTorch's model returns something else when"),
        ("positions", "that one model computes in float32"),
        (
            "likelihoods",
            "no output of a layer differs: PyTorch computes log-softmax, Keras softmax after 2 ",
        ),
    ],
)
def test_the_error_says_what_two_public_styles_do(pair_models: PairModels, name: str, expected: str) -> None:
    models = pair_models(f"public_torch:{name}", f"public_keras:{name}", FEATURES)
    assert models.proof is not None
    assert expected in models.proof.errors[0]
