"""Reading and setting the parameters and buffers of a model for common.map."""

from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np
import torch

from common.errors import UserError
from common.map.changing_buffers import compute_checksums
from common.map.description import Arrays

# Factors and terms that move a parameter out of its range, if it has one: factor * parameter + term. No number stays
# close to 0 in both moves.
FAR_MOVES = ((-10.0, -10.0), (10.0, 30.0))


def get_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and the buffers by name. Tied parameters appear once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def view_state(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return the parameters and buffers by name, as arrays in the same memory."""
    return {name: view_tensor(tensor) for name, tensor in get_state(model).items()}


def view_tensor(tensor: torch.Tensor) -> np.ndarray:
    """View a tensor as an array, without a copy."""
    return np.asarray(tensor.detach().numpy())


def read_state(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return copies of the parameters and buffers by name."""
    return {name: array.copy() for name, array in view_state(model).items()}


@torch.no_grad()
def set_state(model: torch.nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Set some of the parameters and buffers."""
    tensors = get_state(model)
    for name, array in arrays.items():
        tensors[name].copy_(torch.from_numpy(array))


@torch.no_grad()
def find_restricted(model: torch.nn.Module, before: Arrays, compute: Callable[[], object]) -> list[str]:
    """Return the names of the trained parameters that a forward pass moves back into a range, such as a clamp does.

    A pass does not change parameters that are within their range. So this function moves all parameters far away before
    the pass, and restores them afterwards.

    Args:
        model: The model.
        before: Its parameters and buffers.
        compute: A function that computes a pass, and may raise UserError.
    """
    parameters = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.requires_grad and name in before
    }
    others = {name: array for name, array in before.items() if name not in parameters}
    restricted: set[str] = set()
    for factor, offset in FAR_MOVES:
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(before[name])).mul_(factor).add_(offset)
        moved = compute_checksums(view_state(model))
        with suppress(UserError):  # the model may not accept such values
            compute()
        after = compute_checksums(view_state(model))
        restricted |= {name for name in parameters if after.get(name) != moved[name]}
        set_state(model, others)
    set_state(model, before)
    return sorted(restricted)
