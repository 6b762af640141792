"""The arguments of a recorder: their checks, and the record that it follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from common.recording.following import open_follower
from torch_impl.record.hand_updates import HandUpdates
from torch_impl.record.model_facts import is_sharded, name_variables, unwrap_model
from torch_impl.record.optimizer_facts import unwrap_optimizer

if TYPE_CHECKING:
    from torch_impl.record.follower import Follower


def check_arguments(model: object, optimizer: object, steps: object) -> torch.optim.Optimizer:
    """Raise ValueError if an argument is wrong. Return PyTorch's optimizer, without the objects that wrap it.

    None as the optimizer stands for updates by hand.
    """
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"model: must be a torch.nn.Module, not {type(model).__name__}; pass the model that you train")
    inner = unwrap_optimizer(optimizer)
    if optimizer is None and not is_sharded(model):
        inner = _make_hand_updates(model)
    if inner is None:
        raise ValueError(
            f"optimizer: must be a torch.optim.Optimizer, not {type(optimizer).__name__}; pass the model's optimizer"
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps}: must be a number of optimizer steps, at least 1")
    parameters = {id(parameter) for parameter in model.parameters()}
    updated = {id(parameter) for group in inner.param_groups for parameter in group["params"]}
    if not parameters & updated and not is_sharded(model):
        raise ValueError(
            "optimizer: updates none of the model's parameters; create it from model.parameters() of this model, after "
            "the model is on its device"
        )
    return inner


def _make_hand_updates(model: torch.nn.Module) -> HandUpdates | None:
    parameters = {name: x for name, x in name_variables(unwrap_model(model)).items() if x.requires_grad}
    return HandUpdates(parameters) if parameters else None


def follow_record(follow: str | Follower | None, map_file: str | None, directory: str) -> Follower | None:
    """Open the record that a script follows: this imports all of Lockstep. Return None if the script follows none.

    Args:
        follow: The directory of the followed record, or the Follower that an earlier call returned.
        map_file: The file that pairs the variables of the two models.
        directory: The directory of the script's own record.
    """

    def import_follower() -> type[Follower]:
        from torch_impl.record.follower import Follower

        return Follower

    follower: Follower | None = open_follower(follow, map_file, directory, import_follower)
    return follower
