"""Tests of the description of a model in a record."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from torch_impl.record.flattened_inputs import find_unflattened_shape
from torch_impl.record.model_facts import describe_layer, describe_model, find_entry, is_sharded


def _make_map() -> torch.Tensor:
    return torch.zeros(2, 3, 4, 5, requires_grad=True)


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        (torch.zeros(2, 3, 4, 5).flatten(1), [3, 4, 5]),
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last).permute(0, 2, 3, 1).flatten(1), [4, 5, 3]),
        (functional.dropout(functional.relu(torch.zeros(2, 3, 4, requires_grad=True).reshape(2, -1))), [3, 4]),
        (functional.linear(torch.zeros(2, 3, 4).flatten(1), torch.zeros(12, 12, requires_grad=True)), None),
        (torch.zeros(2, 3, 4, requires_grad=True).mean(2), None),
        (functional.avg_pool1d(torch.zeros(2, 3, 8, requires_grad=True), 2).flatten(1), [3, 4]),
        (functional.max_pool1d(torch.zeros(2, 3, 8, requires_grad=True), 2).flatten(1), [3, 4]),
        (torch.zeros(2, 3, 1, 4, requires_grad=True).flatten(1), [3, 1, 4]),
        (torch.zeros(2, 3, 4).reshape(6, 4), None),
        (torch.zeros(2, 3, 4), None),
        (_make_map().permute(0, 3, 1, 2).reshape(2, 5, 12), [3, 4]),
        (functional.relu(_make_map().view(2, 12, 5).transpose(1, -1)), [3, 4]),
        (_make_map().permute(3, 0, 1, 2).flatten(2), [3, 4]),
        (_make_map().flatten(2).transpose(1, 2), None),  # the channels are the features
        (torch.zeros(2, 5, 3, 3, requires_grad=True).flatten(2), None),  # of heads of one size each
        (None, None),
    ],
)
def test_shapes_before_flattening(tensor: torch.Tensor | None, shape: list[int] | None) -> None:
    assert find_unflattened_shape(tensor) == shape


def test_kinds_and_roles() -> None:
    class OwnNorm(nn.LayerNorm):
        pass

    layer = OwnNorm(4, eps=1e-3)
    names = {id(layer.weight): "norm.weight", id(layer.bias): "norm.bias"}
    facts = describe_layer("norm", layer.eval(), names)
    assert (facts["kind"], facts["training"]) == ("LayerNorm", False)
    assert facts["attributes"] == {"normalized_shape": [4], "eps": 1e-3, "elementwise_affine": True}
    assert facts["variables"] == {"weight": "norm.weight", "bias": "norm.bias"}
    attention = nn.MultiheadAttention(4, 2)
    names = {id(tensor): name for name, tensor in attention.named_parameters()}
    assert "out_proj.weight" in describe_layer("attention", attention, names)["variables"]


def test_tied_variables_and_wrappers() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert describe_model(model, [])["tied"] == [["0.weight", "1.weight"]]
    assert find_entry(nn.DataParallel(model)) == (model, True)
    compiled: Any = torch.compile(model)
    assert find_entry(compiled) == (compiled, False)
    assert not is_sharded(model)


@pytest.mark.parametrize(
    ("name", "module", "kind"),
    [
        ("MultiheadAttention", "script", "script.MultiheadAttention"),
        ("Conv1D", "transformers.pytorch_utils", "transformers.Conv1D"),
        ("Conv1D", "script", "Conv1D"),
        ("Block", "script", "Block"),
    ],
)
def test_a_class_of_the_script_with_a_known_name_is_another_kind(name: str, module: str, kind: str) -> None:
    layer = type(name, (nn.Module,), {"__module__": module})()
    assert describe_layer("layer", layer, {})["kind"] == kind
