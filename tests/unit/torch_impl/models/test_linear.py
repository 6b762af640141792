"""Tests that linear layers multiply large matrices with oneDNN and small ones with MKL."""

import pytest
import torch
from torch.nn import Linear, Sequential
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from torch_impl.models import linear

ONEDNN = torch.ops.mkldnn._linear_pointwise.default
INPUTS, OUTPUTS = 24, 40


class OneDnnCounter(TorchDispatchMode):
    """A mode that counts the products of oneDNN."""

    count = 0

    @override
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func is ONEDNN
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
def test_only_large_products_use_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "SMALLEST_PRODUCT", 3 * 8 * INPUTS * OUTPUTS)
    model = Sequential(Linear(INPUTS, OUTPUTS))
    for rows, products in ((7, 0), (8, 3)):  # forward, and the gradients of the input and of the weight
        x = torch.linspace(-1, 1, 3 * rows * INPUTS).reshape(3, rows, INPUTS).requires_grad_()
        expected = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
        linear.use_onednn(model)
        with OneDnnCounter() as counter:
            gradients = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
        model[0].__class__ = Linear
        assert counter.count == products
        for gradient, value in zip(gradients, expected, strict=True):
            torch.testing.assert_close(gradient, value)
