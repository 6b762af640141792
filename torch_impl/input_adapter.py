"""Conversion of the arrays of a batch to the arguments of a user's model."""

from collections.abc import Callable, Collection, Sequence

import torch

from common.map.factory import takes_inputs_by_name
from torch_impl.keras_module import KerasModule

Arguments = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]  # positional and keyword arguments of a call
InputAdapter = Callable[[dict[str, torch.Tensor]], Arguments]  # converts the inputs of a batch, which it gets by name


def build_input_adapter(
    key: str, model: torch.nn.Module, names: Sequence[str], channels: Collection[str]
) -> InputAdapter:
    """Return a function that converts the inputs of a batch to the arguments of a model.

    Args:
        key: The config key that names the model, for errors.
        model: The user's model.
        names: The inputs that the model receives.
        channels: The inputs with channels: their last axis is moved to the second place, where PyTorch expects it. A
            Keras model expects it last.

    Raises:
        UserError: The model does not take one of the inputs.
    """
    if isinstance(model, KerasModule):
        return model.build_adapter(key, names)
    by_name = takes_inputs_by_name(key, model.forward, names)

    def adapt(inputs: dict[str, torch.Tensor]) -> Arguments:
        arguments = {name: channels_first(inputs[name]) if name in channels else inputs[name] for name in names}
        return ((), arguments) if by_name else (tuple(arguments.values()), {})

    return adapt


def channels_first(tensor: torch.Tensor) -> torch.Tensor:
    """Move the last axis to the second place. The result is contiguous, because DDP requires contiguous gradients."""
    return tensor.movedim(-1, 1).clone(memory_format=torch.contiguous_format)
