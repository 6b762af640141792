"""PyTorch's Muon for `optimizer.semantics=native`, with its AdamW for the parameters that Muon does not take."""

from collections.abc import Iterable
from typing import Any

import torch
from typing_extensions import override

from common.config.layout_optimizers import MuonSettings
from common.config.schema import Config


class NativeMuon(torch.optim.Optimizer):
    """PyTorch's Muon and AdamW with PyTorch's defaults, which share their state. Muon takes matrices only."""

    def __init__(self, groups: Iterable[dict[str, Any]], config: Config) -> None:
        """Prepare to update groups of parameters, each with "params", "names" and "lr"."""
        super().__init__(groups, {})
        settings = config.optimizer
        assert isinstance(settings, MuonSettings)
        self.members: list[list[torch.optim.Optimizer]] = []  # the members that update each group
        for group in self.param_groups:
            matrices: list[torch.nn.Parameter] = []
            others: list[torch.nn.Parameter] = []
            for name, parameter in zip(group["names"], group["params"], strict=True):
                is_matrix = "momentum_buffer" in settings.list_slots(name, tuple(parameter.shape))
                (matrices if is_matrix else others).append(parameter)
            members: list[torch.optim.Optimizer] = []
            if matrices:
                members.append(torch.optim.Muon(matrices, nesterov=settings.nesterov))
            if others:
                members.append(torch.optim.AdamW(others))
            self.members.append(members)

    @override
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter from its gradient."""
        for group, members in zip(self.param_groups, self.members, strict=True):
            for member in members:
                member.state = self.state  # loading a checkpoint replaces the state
                member.param_groups[0]["lr"] = group["lr"]
                member.step()
