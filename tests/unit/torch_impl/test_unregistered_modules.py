"""Tests of modules that PyTorch does not register."""

import pytest
import torch
from torch import nn

from common.errors import UserError
from torch_impl.unregistered_modules import check_registration, list_unregistered


class Listed(nn.Module):
    """A model with a layer in a private list that contains itself, and another one that is registered, too."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        self._layers: list[object] = [layer, self.head]
        self._layers.append(self._layers)


def test_private_lists_are_searched_once() -> None:
    layer = nn.Sequential(nn.Linear(2, 2))
    assert list_unregistered(Listed(layer)) == {"_layers.0": layer, "_layers.0.0": layer[0]}
    assert list_unregistered(nn.Sequential(layer)) == {}


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(2, 2), r"_layers\.0 \(Linear\) is in a list.*they are not trained"),
        (nn.Dropout(0.1), "whether the model is in training mode"),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1).requires_grad_(False), "whether the model is in training mode"),
    ],
)
def test_layers_that_do_not_train_as_others_are_refused(layer: nn.Module, expected: str) -> None:
    with pytest.raises(UserError, match=f"^model.torch=m:f: .*{expected}.*; use nn.ModuleList"):
        check_registration("model.torch=m:f", Listed(layer))


def test_layers_without_parameters_of_their_own_are_accepted() -> None:
    shared = nn.Linear(2, 2)
    model = Listed(shared)
    model.parameter_list = nn.ParameterList(shared.parameters())
    check_registration("model.torch=m:f", model)
    check_registration("model.torch=m:f", Listed(nn.Linear(2, 2).requires_grad_(False)))  # a teacher
    check_registration("model.torch=m:f", Listed(nn.CrossEntropyLoss(weight=torch.ones(2))))
