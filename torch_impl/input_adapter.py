"""How a user's module is called with the arrays of a batch."""

from collections.abc import Callable, Collection, Sequence

import torch

from common.map.factory import takes_by_name

InputAdapter = Callable[[dict[str, torch.Tensor]], tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]]


def build_input_adapter(
    key: str, model: torch.nn.Module, names: Sequence[str], channels: Collection[str]
) -> InputAdapter:
    """A function from the inputs by name to the arguments of a call. Raises UserError for a name that is not taken.

    channels: inputs whose last axis becomes the second.
    """
    by_name = takes_by_name(key, model.forward, names)

    def arguments(inputs: dict[str, torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        placed = {name: channels_first(inputs[name]) if name in channels else inputs[name] for name in names}
        return ((), placed) if by_name else (tuple(placed.values()), {})

    return arguments


def channels_first(tensor: torch.Tensor) -> torch.Tensor:
    """The last axis moved to the second place; the strides are a new tensor's, as DDP wants them of gradients."""
    return tensor.movedim(-1, 1).clone(memory_format=torch.contiguous_format)
