"""Tests of the choice of layers that strategy=fsdp gathers, and of the models that it refuses."""

import weakref

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn import Linear, Module, ModuleList, Parameter, ReLU, Sequential

from common.errors import UserError
from torch_impl.strategies.sharded_layers import check_replaced, check_shardable, find_layers


def make_block() -> Sequential:
    return Sequential(Linear(2, 2), ReLU())


class Blocks(Module):
    """A model with two lists of blocks, a list of linear layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = (ModuleList([make_block() for _ in range(count)]) for count in (2, 3))
        self.linears = ModuleList([Linear(2, 2), Linear(2, 2)])
        self.head = Sequential(Linear(2, 2), make_block())


def name_layers(model: Module, choice: str) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[layer] for layer in find_layers(model, choice)]


def test_the_outermost_repeated_layers_are_gathered() -> None:
    expected = ["encoder.0", "encoder.1", "decoder.0", "decoder.1", "decoder.2"]
    assert name_layers(Blocks(), "auto") == expected
    assert name_layers(Sequential(Linear(2, 2), ReLU(), Linear(2, 2)), "auto") == []
    assert name_layers(Blocks(), "none") == []


def test_layers_that_share_a_parameter_are_not_gathered() -> None:
    model = Blocks()
    model.encoder[0][0].weight = model.linears[1].weight  # type: ignore[index]
    model.decoder[1] = model.decoder[0]
    assert name_layers(model, "auto") == ["encoder.1", "decoder.0", "decoder.2"]


def test_patterns_choose_layers_from_the_inside_out() -> None:
    assert name_layers(Blocks(), "head | head.*") == ["head.1.1", "head.1.0", "head.1", "head.0", "head"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("encoder.*|missing", "missing matches no layer; the model has encoder, encoder.0, encoder.0.0, ..."),
        ("decoder", "decoder is never called, so it cannot gather its parameters; name others"),
        ("head", "head shares a parameter with another layer, so it cannot gather its parameters; name others"),
    ],
)
def test_patterns_of_other_layers_are_refused(choice: str, expected: str) -> None:
    model = Blocks()
    model.head[0].weight = model.linears[0].weight
    with pytest.raises(UserError) as error:
        find_layers(model, choice)
    assert str(error.value) == f"strategy.layers={choice}: {expected}"


def test_parameters_that_cannot_be_divided_are_refused() -> None:
    model = Linear(2, 2)
    model.scale = Parameter(torch.tensor(1.0))
    with pytest.raises(UserError, match="strategy=fsdp: parameter scale is a scalar, which has no rows"):
        check_shardable(model)


def test_an_old_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FSDPModule, "set_reduce_scatter_unused_params")
    with pytest.raises(UserError, match="strategy=fsdp: this PyTorch is too old; install 2.13 or newer"):
        check_shardable(Linear(2, 2))


def test_parameters_become_contiguous() -> None:
    model = Linear(2, 3)
    model.weight = Parameter(torch.arange(6.0).view(2, 3).T)
    check_shardable(model)
    assert model.weight.is_contiguous() and model.weight.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.slow
def test_a_parameter_that_something_else_refers_to_is_refused() -> None:
    kept, dropped = Parameter(torch.ones(1)), Parameter(torch.ones(1))
    references = {"dropped": weakref.ref(dropped), "kept": weakref.ref(kept)}
    cycle: list[object] = [dropped]
    cycle.append(cycle)
    del dropped, cycle
    with pytest.raises(UserError, match="something besides its module refers to parameter kept"):
        check_replaced(references)
