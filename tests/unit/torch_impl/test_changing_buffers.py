"""Buffers that forward passes change: how replicas keep them equal, and how models save them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from common.errors import UserError
from torch_impl.changing_buffers import (
    average_buffers,
    check_equal_buffers,
    copy_buffers,
    gather_replica_buffers,
    mark_changing_buffers,
)
from torch_impl.models.weights import load_weights, read_weights

WORLD_SIZE = 2


def make_model(calls: int, centre: float) -> nn.Module:
    """Make a model with a counter of passes, and an average of examples that is named as BatchNorm's."""
    model = nn.Linear(2, 1)
    model.register_buffer("calls", torch.tensor(calls), persistent=False)
    model.register_buffer("running_mean", torch.full((2,), centre))
    model.register_buffer("table", torch.zeros(2))
    mark_changing_buffers(model, {"calls": False, "running_mean": True})
    return model


def add_rank(calls: int, centre: float) -> Callable[[torch.Tensor], None]:
    """Return an all-reduce with one other rank, which has these buffers."""

    def all_reduce(tensor: torch.Tensor) -> None:
        tensor += calls if tensor.dim() == 0 else centre

    return all_reduce


def test_weights_have_the_buffers_that_change() -> None:
    saved = {name: array.copy() for name, array in read_weights(make_model(3, 0.5)).items()}
    assert saved.keys() == {"weight", "bias", "calls", "running_mean"}
    model = make_model(0, 0.0)
    load_weights(model, saved)
    assert (model.get_buffer("calls").item(), model.get_buffer("running_mean").tolist()) == (3, [0.5, 0.5])


def test_only_buffers_of_the_examples_are_averaged_over_ranks() -> None:
    model = make_model(3, 0.5)
    average_buffers(model, add_rank(3, 1.5), WORLD_SIZE)
    check_equal_buffers(model, add_rank(3, 0.0), WORLD_SIZE)
    assert (model.get_buffer("calls").item(), model.get_buffer("running_mean").tolist()) == (3, [1.0, 1.0])


def test_ranks_with_different_buffers_are_an_error() -> None:
    with pytest.raises(UserError, match="^calls: differs between the replicas"):
        check_equal_buffers(make_model(3, 0.5), add_rank(4, 0.0), WORLD_SIZE)


def test_a_model_gets_the_buffers_of_its_replicas() -> None:
    model, replicas = make_model(0, 0.0), [make_model(3, 0.5), make_model(3, 1.5)]
    gather_replica_buffers(model, replicas)
    copy_buffers(model, replicas[0])
    for module in (model, replicas[0]):
        assert (module.get_buffer("calls").item(), module.get_buffer("running_mean").tolist()) == (3, [1.0, 1.0])
    with pytest.raises(UserError, match="^calls: differs between the replicas"):
        gather_replica_buffers(model, [make_model(3, 0.5), make_model(4, 0.5)])
