"""Tests of the description of operations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from common.recording.index_notation import write_index
from torch_impl.record.operation_facts import list_arguments

X = torch.arange(24.0).reshape(2, 3, 4)


class Listing(TorchFunctionMode):
    """Lists the arguments of the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: list[dict[str, object]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.arguments.append(list_arguments(func, args, kwargs or {}))
        return result


@pytest.mark.parametrize(
    ("select", "index"),
    [
        (lambda x: x[:, -1], np.s_[:, -1]),
        (lambda x: x[..., 1:, None], np.s_[..., 1:, None]),
        (lambda x: x[1], np.s_[1]),
        (lambda x: x.select(-1, 2), np.s_[:, :, 2]),
        (lambda x: torch.select(x, dim=1, index=-1), np.s_[:, -1]),
        (lambda x: torch.select(input=x, dim=1, index=-1), np.s_[:, -1]),
        (lambda x: x.flip(1), np.s_[:, ::-1]),
        (lambda x: x.flip(-1, 0), np.s_[::-1, :, ::-1]),
        (lambda x: torch.flip(x, dims=(0,)), np.s_[::-1]),
        (lambda x: x.narrow(1, 1, 2), np.s_[:, 1:]),
        (lambda x: torch.narrow(x, 2, start=-3, length=2), np.s_[:, :, 1:3]),
    ],
)
def test_selections_have_an_index(select: Callable[[torch.Tensor], torch.Tensor], index: Any) -> None:
    with Listing() as listing:
        result = select(X)
    assert [arguments.get("index") for arguments in listing.arguments] == [write_index(index)]
    assert np.array_equal(result.squeeze(), X.numpy()[index].squeeze())


def test_arguments_of_other_functions_are_their_own() -> None:
    index, x = torch.tensor([1, 0]), X.clone()
    with Listing() as listing:
        x.index_select(0, index)
        x[:, 0] = 0.5
    of_selection, of_item = listing.arguments
    assert of_selection["1"] == 0
    assert "index" not in of_selection
    assert "index" not in list_arguments(torch.Tensor.narrow, (x, 1, torch.tensor(1), 2), {})
    assert (of_item["index"], of_item["2"]) == ("[:, 0]", 0.5)


def test_tensors_within_an_index_are_not_read() -> None:
    assert list_arguments(torch.Tensor.__getitem__, (X, (0, torch.tensor([2, 0]))), {})["index"] == "[0, int64[2]]"
    start = torch.tensor(1)
    assert list_arguments(torch.Tensor.__getitem__, (X, slice(start, None)), {})["index"] == "[int64[]:]"
