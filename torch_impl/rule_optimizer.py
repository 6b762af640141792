"""An optimizer of PyTorch that computes the update rules of common.training.optimizer_rules."""

from collections.abc import Iterable

import torch
from typing_extensions import override

from common.config.schema import Config
from common.training.optimizer_rules import build_rule


class RuleOptimizer(torch.optim.Optimizer):
    """An optimizer whose update is one of these rules. Its state and groups have the form that torch.optim gives them.

    Attributes:
        rule: The rule of the next update. A schedule that cycles the momentum replaces it.
    """

    def __init__(self, groups: Iterable[dict[str, object]], config: Config) -> None:
        """Prepare to update groups of parameters, each with "params", "names", "lr" and "weight_decay"."""
        super().__init__(groups, {})
        self.rule = build_rule(config.optimizer)

    @torch.no_grad()
    @override
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter from its gradient."""
        settings = self.rule.settings
        for group in self.param_groups:
            # The scalars of the rule, by the number of the update, which is mostly the same for all parameters.
            scalars: dict[int, list[float]] = {}
            for name, parameter in zip(group["names"], group["params"], strict=True):
                state, shapes = self.state[parameter], settings.list_slots(name, tuple(parameter.shape))
                if not state:
                    state["step"] = torch.zeros([])
                    for slot, shape in shapes.items():
                        state[slot] = parameter.new_full(shape, settings.initial_slot_value)
                state["step"] += 1
                number = int(state["step"])
                if number not in scalars:
                    scalars[number] = self.rule.compute_scalars(group["lr"], group["weight_decay"], number)
                slots = [state[slot] for slot in shapes]
                layout = settings.find_layout(name)
                change, after = self.rule.compute(torch, parameter, parameter.grad, slots, scalars[number], layout)
                parameter += change
                state.update(zip(shapes, after, strict=True))
