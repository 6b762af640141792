"""The losses of single elements. A loss function of PyTorch returns only their mean or their sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torch_impl.record.patches import LOSS_FUNCTIONS, bind_arguments

# ctc_loss divides each loss by the length of its labels before the mean; the second calls a function of the script
WHOLE_FUNCTIONS = {"ctc_loss", "triplet_margin_with_distance_loss"}
WEIGHTED_FUNCTIONS = {"cross_entropy", "nll_loss"}  # whose mean is weighted
OLD_REDUCTIONS = ("size_average", "reduce")  # arguments in place of `reduction`


@dataclass
class Reduction:
    """A call of a loss function as two operations.

    Attributes:
        losses: The result of the function with the reduction "none".
        name: The reduction: "mean", "sum" or "batchmean".
        arguments: The divisor of a mean that is not the number of losses.
    """

    losses: torch.Tensor
    name: str
    arguments: dict[str, float]


def split_reduction(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reduction | None:
    """Compute the unreduced losses of a call of a loss function; None for other calls, or if that fails.

    Args:
        function: The function.
        args: The positional arguments.
        kwargs: The keyword arguments.
    """
    name = getattr(function, "__name__", "")
    is_loss = name in LOSS_FUNCTIONS and getattr(function, "__module__", "") == torch.nn.functional.__name__
    if not is_loss or name in WHOLE_FUNCTIONS:
        return None
    arguments = bind_arguments(function, args, dict(kwargs))
    reduction = arguments["reduction"]
    if reduction == "none" or any(arguments.get(old) is not None for old in OLD_REDUCTIONS):
        return None
    try:
        with torch.no_grad():
            losses = function(**{**arguments, "reduction": "none"})
            divisor = _find_divisor(arguments) if name in WEIGHTED_FUNCTIONS and reduction == "mean" else None
    except RuntimeError:  # the labels have no values within torch.func, or there is not enough memory
        return None
    return Reduction(losses, reduction, {} if divisor is None or divisor == losses.numel() else {"divisor": divisor})


def _find_divisor(arguments: Mapping[str, Any]) -> float | None:
    """Return the sum of the weights of the labels; None if the labels are probabilities."""
    labels, weights = arguments["target"], arguments["weight"]
    if labels.is_floating_point():
        return None
    used = labels[labels != arguments["ignore_index"]]
    return float(used.numel() if weights is None else weights[used].sum())
