"""Tests of models that are built with their initial weights."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn import Linear, Module, Parameter

from torch_impl.models.weights import build_with_weights


class TiedModel(Module):
    """A model that registers one parameter twice, and ties the weights of two layers."""

    def __init__(self) -> None:
        super().__init__()
        scale = Parameter(torch.ones(2), requires_grad=False)
        self.first_scale, self.second_scale = scale, scale
        self.first, self.second = Linear(2, 2), Linear(2, 2)
        self.second.weight = self.first.weight


@pytest.mark.parametrize("is_deferred", [False, True])
def test_tied_parameters_stay_tied(is_deferred: bool) -> None:
    names = [name for name, _ in TiedModel().named_parameters()]
    weights = {name: np.full((2, 2) if "weight" in name else 2, i, np.float32) for i, name in enumerate(names)}
    initial = cast("Any", SimpleNamespace(is_deferred=is_deferred, weights=lambda: weights))
    model = build_with_weights(initial, TiedModel)
    assert model.first_scale is model.second_scale and not model.first_scale.requires_grad
    assert model.first.weight is model.second.weight and model.first.weight.requires_grad
    assert {parameter.is_meta for parameter in model.parameters()} == {is_deferred}
    if not is_deferred:
        assert {name: float(tensor.detach().max()) for name, tensor in model.named_parameters()} == {
            name: float(i) for i, name in enumerate(names)
        }
