"""Tests of frozen parameters."""

import torch

from tests.conftest import MakeConfig
from torch_impl.models.parameter_groups import find_groups, freeze_parameters


def test_frozen_parameters_get_no_gradient(make_config: MakeConfig) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    config = make_config("optimizer.groups=[{match: '0.*', frozen: true}, {match: '*.bias', weight_decay: 0}]")
    freeze_parameters(model, config)
    model(torch.ones(1, 3)).sum().backward()
    assert [name for name, x in model.named_parameters() if x.grad is None] == ["0.weight", "0.bias"]
    groups = find_groups(dict(model.named_parameters()), config)
    assert {name: group.weight_decay for name, group in groups.items()} == {
        "0.weight": 0.01,
        "0.bias": 0,
        "1.weight": 0.01,
        "1.bias": 0,
    }
