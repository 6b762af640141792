"""Calls of loss functions, and what a script combines with the outputs of its model if it calls none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Union

import numpy as np
import torch

from common.recording.record_format import LossFacts, LossTerm
from common.recording.record_writer import Sample, list_plain_values
from torch_impl.record.arrays import name_tensors
from torch_impl.record.copies import Copies
from torch_impl.record.graph import MarkReference, mark_nodes
from torch_impl.record.patches import bind_arguments

Arrays = dict[str, Union[np.ndarray, Sample]]  # noqa: UP007  Python 3.9 evaluates it


@dataclass
class LossCall:
    """A call of a loss function of PyTorch.

    Attributes:
        facts: The function.
        labels: Its arguments that need no gradient.
        marks: The marks of its result in the graph.
        value: The mean of what it returned.
        share: The sum of what it returned times the gradient of the loss by it; None before the backward pass.
        hook: The hook that computes the share.
        functions: The functions, such as "sqrt", through which the loss depends on it: the share is then not known.
    """

    facts: LossFacts
    labels: Arrays
    marks: list[MarkReference]
    value: torch.Tensor
    share: torch.Tensor | None = None
    hook: torch.utils.hooks.RemovableHandle | None = None
    functions: set[str] = field(default_factory=set)

    def observe_gradient(self, result: torch.Tensor) -> None:
        """Compute the share when the backward pass reaches the result of the call."""
        values = _copy_numbers(result)

        def compute_share(gradient: torch.Tensor) -> None:
            self.share = (values * gradient.detach()).sum()

        self.hook = result.register_hook(compute_share)

    def forget_hook(self) -> None:
        """Remove the hook after the backward pass."""
        if self.hook is not None:
            self.hook.remove()
            self.hook = None

    def describe(self, loss_scale: float | None) -> LossTerm:
        """Return the call as a term of the loss. loss_scale: the factor of a gradient scaler."""
        share = None if self.share is None or self.functions else float(self.share) / (loss_scale or 1.0)
        term: LossTerm = {**self.facts, "value": float(self.value), "share": share}
        return {**term, "functions": sorted(self.functions)} if self.functions else term


@dataclass
class Operand:
    """A tensor without a gradient with which a script combines an output of the model, such as labels.

    Attributes:
        array: Its copy.
        marks: The marks of the result in the graph.
        is_selection: Whether it holds indices or a mask.
        number: Its number in the list of operations; None if the list does not have it.
    """

    array: np.ndarray | Sample
    marks: list[MarkReference]
    is_selection: bool
    number: int | None


def describe_loss_call(
    function: object, result: object, args: tuple[object, ...], kwargs: Mapping[str, object], copies: Copies
) -> LossCall | None:
    """Describe a call of a loss function; None if its result has no gradient, as in an evaluation."""
    if not (callable(function) and isinstance(result, torch.Tensor) and result.grad_fn is not None):
        return None
    arguments = bind_arguments(function, args, dict(kwargs))
    plain = {name: value for name, value in arguments.items() if not isinstance(value, torch.Tensor)}
    labels = {name: copies.copy(tensor) for name, tensor in find_labels(function, args, kwargs).items()}
    facts: LossFacts = {"name": getattr(function, "__name__", ""), "arguments": list_plain_values(plain)}
    call = LossCall(facts, labels, mark_nodes([result]), _copy_numbers(result).mean())
    call.observe_gradient(result)
    return call


def find_labels(function: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Return the tensors without a gradient that a loss function received, by the names of its parameters."""
    arguments = bind_arguments(function, args, dict(kwargs)) if callable(function) else {}
    return {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor) and not x.requires_grad}


def describe_operands(
    result: object, arguments: object, copies: Copies, find_number: Callable[[torch.Tensor], int | None]
) -> list[Operand]:
    """Return the operands without a gradient of an operation; none if its result has no gradient.

    Args:
        result: What the operation returned.
        arguments: What it received, in nested containers.
        copies: Copies the operands.
        find_number: Returns the number of a tensor in the list of operations.
    """
    if not (isinstance(result, torch.Tensor) and result.grad_fn is not None):
        return []
    tensors = [tensor for _, tensor in name_tensors(arguments) if not tensor.requires_grad and tensor.numel() > 1]
    return [
        Operand(
            copies.copy(tensor), mark_nodes([result]), tensor.dtype in (torch.int64, torch.bool), find_number(tensor)
        )
        for tensor in tensors
        if not are_rows(tensor)
    ]


def are_rows(tensor: torch.Tensor) -> bool:
    """Check whether a tensor has the numbers of all rows, as in `scores[torch.arange(len(labels)), labels]`."""
    is_index = tensor.dtype == torch.int64 and tensor.ndim == 1
    return is_index and torch.equal(tensor, torch.arange(len(tensor), device=tensor.device))


def _copy_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in float32 or more: the script may change the tensor in place, as in `loss += penalty`."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
