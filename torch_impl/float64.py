"""Float64 computation throughout: some models cast to float32 even if their weights are float64.

transformers, for example, computes norms, softmax and the tables of rotary positions in float32. It multiplies the
matrices of all experts with a function of PyTorch that has no float64 kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from typing_extensions import override

WIDER_TYPES = {torch.float32: torch.float64, torch.complex64: torch.complex128}
WIDENED_METHODS = {"float": "double", "cfloat": "cdouble"}  # methods of tensors that cast to float32 or complex64
GROUPED_PRODUCTS = ("grouped_mm", "_grouped_mm")


def compute_in_float64() -> None:
    """Make new tensors and constants float64 for the rest of this process."""
    torch.set_default_dtype(torch.float64)


def keep_float64() -> AbstractContextManager[object]:
    """Return a context that makes every cast to float32 in the code of a float64 model a cast to float64.

    Casts to complex64, which a Fourier transform needs, become casts to complex128.
    """
    return _KeepFloat64()


class _KeepFloat64(TorchFunctionMode):
    """A mode to which PyTorch passes every function call. It replaces float32 by float64 in the arguments."""

    @override
    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Any, ...] = (),  # Any: the arguments of any PyTorch function
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        name = getattr(func, "__name__", "")
        if name in WIDENED_METHODS:
            func = getattr(torch.Tensor, WIDENED_METHODS[name])
        if name in GROUPED_PRODUCTS:
            func = _multiply_groups
        args = tuple(_widen(argument) for argument in args)
        return func(*args, **{name: _widen(argument) for name, argument in (kwargs or {}).items()})


def _multiply_groups(
    inputs: torch.Tensor, weights: torch.Tensor, *, offs: torch.Tensor, bias: None = None, out_dtype: object = None
) -> torch.Tensor:
    """Multiply groups of rows with a matrix each, as torch.nn.functional.grouped_mm does.

    Args:
        inputs: The rows [rows, inputs].
        weights: The matrices [groups, inputs, outputs].
        offs: The index of the row after the last row of each group [groups]. Rows after the last group give zeros.
        bias: Always None, because PyTorch supports no bias.
        out_dtype: Not used: the products have the type of the rows.

    Returns:
        The products [rows, outputs].
    """
    bounds = [0, *offs.tolist()]
    products = [inputs[start:end] @ weight for start, end, weight in zip(bounds, bounds[1:], weights, strict=False)]
    return torch.cat([*products, inputs.new_zeros(len(inputs) - bounds[-1], weights.shape[2])])


def _widen(argument: object) -> object:
    return WIDER_TYPES.get(argument, argument) if isinstance(argument, torch.dtype) else argument
