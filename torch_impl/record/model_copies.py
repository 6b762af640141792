"""Copies that a script makes of its model before it follows a record, such as target networks and averaged models."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

COPIES = "weights: copies of the model ({}), such as a target network, got those of the record, too"


def find_copies(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the other models of the same class that have the same weights, and are no part of the model."""
    parts, weights = {id(part) for part in model.modules()}, [*model.parameters()]
    if all(bool((weight == weight.flatten()[:1]).all()) for weight in weights):
        return []  # equal by chance
    candidates = [x for x in gc.get_objects() if type(x) is type(model) and id(x) not in parts]
    return [x for x in candidates if _are_equal(weights, [*x.parameters()])]


def _are_equal(weights: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Check whether weights are equal, on the same devices, and not the same tensors."""
    pairs = list(zip(weights, others))  # noqa: B905
    if len(weights) != len(others) or any(x is y or torch.nn.parameter.is_lazy(y) for x, y in pairs):
        return False
    return all((x.shape, x.device) == (y.shape, y.device) and torch.equal(x, y) for x, y in pairs)
