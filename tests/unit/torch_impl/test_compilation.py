"""Tests that compiled layers need few graphs. The layers run in a process that counts its compilations."""

import json

import pytest

from tests.conftest import Python

pytestmark = pytest.mark.slow

TRAIN = """
import json, sys, torch
from torch.nn import GELU, Linear, Module, ModuleList, Sequential
from torch_impl.compilation import report_compilations, compile_model
from torch_impl.models.linear import use_onednn

class Net(Module):
    def __init__(self):
        super().__init__()
        self.layers = ModuleList(Sequential(Linear(8, 8), GELU()) for _ in range(4))
        self.first, self.last = Linear(8, 8), Linear(8, 2)
    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)

def gradients(model, rows):
    model.zero_grad()
    loss = model(torch.linspace(-1, 1, rows * 8).reshape(rows, 8)).square().sum()
    loss.backward()
    return [loss.item(), *(p.grad.sum().item() for p in model.parameters())]

torch.manual_seed(0)
model = Net()
use_onednn(model)
before = [gradients(model, rows) for rows in (3, 5, 11)]
none = report_compilations()
compile_model(model)
after = [gradients(model, rows) for rows in (3, 5, 11)]
print(json.dumps([none, before, after, report_compilations()]))
"""


def test_one_compilation_serves_all_layers_and_shapes(python: Python) -> None:
    none, before, after, counted = json.loads(python(TRAIN))
    assert none == {"compilations": 0, "compile_seconds": 0}
    assert counted["compilations"] == 1
    assert counted["compile_seconds"] > 0
    for eager, compiled in zip(before, after, strict=True):
        assert eager == pytest.approx(compiled, rel=1e-5, abs=1e-6)
