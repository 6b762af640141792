"""Keras models on the PyTorch backend are paired by Keras's paths with the same models on TensorFlow, and proven."""

from dataclasses import replace

import pytest

from common.errors import UserError
from common.map.description import ModelDescription
from common.map.pair_models import PairedModels, describe_models, pair_models
from tests.unit.common.conftest import Sides
from tests.unit.common.map.conftest import DescribeModel, build_request

pytestmark = pytest.mark.slow

IMAGES, TOKENS, FEATURES = {"x": "float32[4,8,8,channels=3]"}, {"x": "int32[4,5]<11"}, {"x": "float32[4,6]"}


def pair_backends(sides: Sides, name: str, inputs: dict[str, str]) -> PairedModels:
    """Pair a factory of backend_models with itself."""
    request = build_request(f"backend_models:{name}", f"backend_models:{name}", inputs)
    return pair_models(sides["torch"], sides["tf"], replace(request, is_one_factory=True))


def list_noises(description: ModelDescription) -> list[str]:
    return [str(dropout.noise) for dropout in description.dropouts.values()]


@pytest.mark.parametrize(("name", "inputs", "noises"), [("images", IMAGES, 4), ("tokens", TOKENS, 1)])
def test_both_backends_compute_the_same(sides: Sides, name: str, inputs: dict[str, str], noises: int) -> None:
    models = pair_backends(sides, name, inputs)
    assert models.proof is not None
    assert not models.proof.errors
    assert max(models.proof.measured.values()) < 1e-10
    assert all(str(pair.transformation) == pair.keras for pair in models.parameter_map.variable_pairs)
    torch, keras = models.torch_description, models.keras_description
    assert torch.is_keras
    assert torch.statistics == keras.statistics
    assert list_noises(torch) == list_noises(keras)
    assert len(torch.dropouts) == noises
    assert [layer.path for layer in torch.layers] == [layer.path for layer in keras.layers]
    assert torch.unaligned_noise == torch.unsupported == []


def test_what_training_would_lose_is_named(describe_model: DescribeModel) -> None:
    description = describe_model("torch", "backend_models:penalized", FEATURES)
    assert description.unsupported == [
        "variable dense/kernel has a regularizer (L2), whose loss training does not add; remove it"
    ]


def test_mistakes_are_errors_of_one_line(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    module = replace(build_request("linear", "backend_models:penalized", FEATURES), is_one_factory=True)
    with pytest.raises(UserError, match=r"^model\.keras=\S*torch_models:linear: returned a torch\.nn\.Module, not a"):
        describe_models(sides, module)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(UserError, match=r"^KERAS_BACKEND=jax: model\.torch returns a Keras model, which computes on"):
        pair_backends(sides, "penalized", FEATURES)
