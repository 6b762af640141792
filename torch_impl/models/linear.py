"""Linear layers that multiply matrices with oneDNN or in bfloat16.

PyTorch multiplies float32 matrices on a CPU with MKL, which is slow on processors that are not Intel's: on an AMD
processor with AVX-512, oneDNN was 2.3 times as fast. For bfloat16, PyTorch uses oneDNN itself.

A call of oneDNN costs about 50 microseconds more than a call of MKL, so small products stay with MKL.
"""

import torch
from torch.autograd.function import FunctionCtx
from torch.nn import Linear, Module
from torch.nn.functional import linear
from typing_extensions import override

SMALLEST_PRODUCT = 2**24  # fewest multiplications for oneDNN; measured on a processor that both libraries use well


class _SavedContext(FunctionCtx):
    """The context of a backward pass, as autograd creates it."""

    saved_tensors: tuple[torch.Tensor, torch.Tensor]
    needs_input_grad: tuple[bool, bool, bool]


class _Product(torch.autograd.Function):
    """The function of a linear layer: x [..., inputs], weight [outputs, inputs], bias [outputs] -> [..., outputs]."""

    @staticmethod
    @override
    def forward(ctx: FunctionCtx, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_linear(x, weight, bias)

    @staticmethod
    @override
    def backward(ctx: _SavedContext, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        gradient_rows = gradient.flatten(0, -2)
        return (
            onednn_linear(gradient, weight.t()) if needs_x else None,
            onednn_linear(gradient_rows.t(), x.flatten(0, -2).t()) if needs_weight else None,
            gradient_rows.sum(0) if needs_bias else None,
        )


class OneDnnLinear(Linear):
    """A linear layer that multiplies large float32 matrices on a CPU with oneDNN."""

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu") or self._is_small(x):
            return linear(x, self.weight, self.bias)
        product: torch.Tensor = _Product.apply(x, self.weight, self.bias)
        return product

    def _is_small(self, x: torch.Tensor) -> bool:
        """Check whether the product with x is small. Compiled code treats all products as large, to have one branch."""
        return not torch.compiler.is_compiling() and x.numel() * self.out_features < SMALLEST_PRODUCT


class Bfloat16Linear(Linear):
    """A linear layer that multiplies in bfloat16. Its inputs, its outputs and the sum with the bias are float32."""

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x.bfloat16(), self.weight.bfloat16()).float() + self.bias  # the bias is not rounded


def use_bfloat16(model: Module) -> None:
    """Make the linear layers of a model multiply in bfloat16."""
    for module in model.modules():
        if type(module) is Linear:
            module.__class__ = Bfloat16Linear


def use_onednn(model: Module) -> None:
    """Make the linear layers of a model multiply with oneDNN, if this PyTorch contains it."""
    if torch.backends.mkldnn.is_available():
        for module in model.modules():
            if type(module) is Linear:
                module.__class__ = OneDnnLinear


def onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply x [..., inputs] by the transpose of weight [outputs, inputs], and add the bias [outputs]."""
    if torch.compiler.is_compiling():
        return _opaque_onednn_linear(x, weight, bias)
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@torch.library.custom_op("lockstep::multiply", mutates_args=())
def _opaque_onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply in an operation that Inductor does not compile, because Inductor requires constant weights here."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@_opaque_onednn_linear.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])
