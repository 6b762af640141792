"""Classes and modules of a script that know the operations of tensors while a recorder replaces them."""

import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from torch_impl.record import Recorder

KNOWN: dict[Callable[..., object], str] = {
    torch.Tensor.mul: "mul",
    torch.Tensor.sub: "sub",
    torch.Tensor.gather: "gather",
    torch.Tensor.__getitem__: "index",
}


class KnownOperations(torch.Tensor):
    @classmethod
    def __torch_function__(
        cls, function: Callable[..., object], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        known = KNOWN.get(function)
        return known or super().__torch_function__(function, types, args, kwargs or {})


def start(directory: Path) -> Recorder:
    model = nn.Linear(2, 2)
    return Recorder(str(directory), model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("count", [1, 2])
def test_a_class_finds_operations_in_its_table(count: int, tmp_path: Path) -> None:
    tensor = torch.ones(1, 1).as_subclass(KnownOperations)
    recorders = [start(tmp_path / str(number)) for number in range(count)]
    index = torch.zeros(1, 1, dtype=torch.int64)
    results = [tensor.mul(2), tensor.sub(1), tensor.gather(0, index), tensor[0]]
    for recorder in recorders:
        recorder.close()
    assert results == ["mul", "sub", "gather", "index"]


def test_torchscript_compiles_functions_that_are_replaced(tmp_path: Path) -> None:
    def compute_loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(a, b) + torch.sub(a, b).mean() + a.mul(b).mean()

    recorder = start(tmp_path)
    compiled, a, b = torch.jit.script(compute_loss), torch.ones(2), torch.zeros(2)
    replaced = functional.mse_loss
    recorder.close()
    assert compiled(a, b) == compute_loss(a, b)
    assert replaced is not functional.mse_loss  # the recorder continues after the compilation


def test_functions_of_torch_are_restored(tmp_path: Path) -> None:
    functions = {**vars(torch)}
    recorder = start(tmp_path)
    table = {functions["sub"]: "sub"}
    assert table[torch.sub] == "sub"
    assert torch.sub(torch.ones(1), 1) == 0
    recorder.close()
    assert {**vars(torch)} == functions
    assert torch.sub is functions["sub"]


def test_a_replaced_operation_can_be_pickled(tmp_path: Path) -> None:
    recorder = start(tmp_path)
    data = pickle.dumps(torch.Tensor.mul)
    recorder.close()
    assert pickle.loads(data) is torch.Tensor.mul


def test_a_module_that_imports_an_operation_while_recording_keeps_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    methods, module = {**vars(torch.Tensor)}, types.ModuleType("imported")
    recorder = start(tmp_path)
    module.multiply = torch.Tensor.mul  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "imported", module)
    recorder.close()
    assert module.multiply is torch.Tensor.mul
    assert {**vars(torch.Tensor)} == methods


def test_a_number_in_a_list_stays_a_number(tmp_path: Path) -> None:
    """A tensor of a single number would count as a sequence if a method in Python selected its elements."""
    model = nn.Linear(2, 1)
    recorder = Recorder(str(tmp_path), model, torch.optim.SGD(model.parameters(), lr=0.1))
    outputs = model(torch.ones(3, 2))
    for number in torch.tensor([1.0, 2.0]):
        assert torch.tensor([number]).tolist() == [number.item()]
        assert torch.FloatTensor([number, number]).tolist() == [number.item()] * 2
        assert np.array([number]).tolist() == [number.item()]
    outputs.sum().backward()
    recorder.close()
