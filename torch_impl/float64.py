"""Float64 computation throughout: some models cast to float32 even if their weights are float64.

transformers, for example, computes norms, softmax and the tables of rotary positions in float32.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from typing_extensions import override


def compute_in_float64() -> None:
    """Make new tensors and constants float64 for the rest of this process."""
    torch.set_default_dtype(torch.float64)


class KeepFloat64(TorchFunctionMode):
    """A context of a float64 model's code, in which every cast to float32 is one to float64."""

    @override
    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Any, ...] = (),  # of any PyTorch function
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(_widen(argument) for argument in args)
        return func(*args, **{name: _widen(argument) for name, argument in (kwargs or {}).items()})


def keep_float64(model: Module) -> None:
    """Call the forward pass of a float64 model within `KeepFloat64`, in any thread."""
    modes: list[KeepFloat64] = []  # PyTorch keeps a stack of modes for each thread; these have no state of their own

    def enter(module: Module, args: object) -> None:
        modes.append(KeepFloat64())
        modes[-1].__enter__()

    def leave(module: Module, args: object, returned: object) -> None:
        modes.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(enter, prepend=True)
    model.register_forward_hook(leave, always_call=True)


def _widen(argument: object) -> object:
    return torch.float64 if argument is torch.float32 else argument
