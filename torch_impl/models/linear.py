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

# Smallest product (multiplications) sent to oneDNN; measured on a CPU on which MKL and oneDNN are equally fast
SMALLEST_PRODUCT = 2**24


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
        """Check whether the product with x is small. Under torch.compile no product is: a check would add a branch."""
        return not torch.compiler.is_compiling() and x.numel() * self.out_features < SMALLEST_PRODUCT


class Bfloat16Linear(Linear):
    """A linear layer with a bias that multiplies in bfloat16. Inputs, outputs and the sum with the bias are float32.

    Only BERT supports train.matmul_precision=bfloat16, and all its linear layers have a bias.
    """

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x.bfloat16(), self.weight.bfloat16()).float() + self.bias


def use_bfloat16(model: Module) -> None:
    """Make the linear layers of a model multiply in bfloat16."""
    _replace_class(model, Bfloat16Linear)


def use_onednn(model: Module) -> None:
    """Make the linear layers of a model multiply with oneDNN, if this PyTorch contains it."""
    if torch.backends.mkldnn.is_available():
        _replace_class(model, OneDnnLinear)


def _replace_class(model: Module, linear_class: type[Linear]) -> None:
    """Set the class of the linear layers of a model. Their parameters and hooks stay."""
    for module in model.modules():
        if type(module) is Linear:  # a subclass may have another forward pass
            module.__class__ = linear_class


def onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply x [..., inputs] by the transpose of weight [outputs, inputs], and add the bias [outputs]."""
    if torch.compiler.is_compiling():
        return _opaque_onednn_linear(x, weight, bias)
    return _call_onednn(x, weight, bias)


def _call_onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@torch.library.custom_op("lockstep::multiply", mutates_args=())
def _opaque_onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply in an op that is opaque to Inductor, whose lowering of `_linear_pointwise` requires constant weights."""
    return _call_onednn(x, weight, bias)


@_opaque_onednn_linear.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])
