"""How linear layers multiply matrices.

On the CPU in float32 oneDNN does it in place of MKL, which is slow on processors that are not Intel's: on one of AMD's
with AVX-512 oneDNN was 2.3 times as fast. In bfloat16 PyTorch uses it by itself.
"""

from typing import Any

import torch
from torch.nn import Linear, Module
from torch.nn.functional import linear


class _Product(torch.autograd.Function):
    """x [..., inputs], weight [outputs, inputs], bias [outputs] -> [..., outputs]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            multiply(gradient, weight.t()) if for_x else None,
            multiply(rows.t(), x.flatten(0, -2).t()) if for_weight else None,
            rows.sum(0) if for_bias else None,
        )


class OneDnnLinear(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return linear(x, self.weight, self.bias)
        product: torch.Tensor = _Product.apply(x, self.weight, self.bias)
        return product


class Bfloat16Linear(Linear):
    """Multiplies in bfloat16; all that goes in and comes out is float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x.bfloat16(), self.weight.bfloat16()).float() + self.bias  # which bfloat16 would round


def use_bfloat16(model: Module) -> None:
    """Have the linear layers of a model multiply in bfloat16."""
    for module in model.modules():
        if type(module) is Linear:
            module.__class__ = Bfloat16Linear


def use_onednn(model: Module) -> None:
    """Have the linear layers of a model multiply by oneDNN, where PyTorch has it."""
    if torch.backends.mkldnn.is_available():
        for module in model.modules():
            if type(module) is Linear:
                module.__class__ = OneDnnLinear


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., inputs] times the transpose of weight [outputs, inputs], plus the bias."""
    if torch.compiler.is_compiling():
        return _opaque_multiply(x, weight, bias)
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@torch.library.custom_op("lockstep::multiply", mutates_args=())
def _opaque_multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The same for Inductor, which compiles this operation of oneDNN with constant weights only."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@_opaque_multiply.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])
