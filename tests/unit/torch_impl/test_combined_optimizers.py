"""Optimizers, schedules and parameter groups in combination, against torch.optim and its schedulers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

from tests.conftest import MakeConfig, in_matrix
from tests.unit.combined_optimizers import (
    CYCLED,
    RATE,
    STEPS,
    TOTAL,
    expand,
    get_group,
    list_combinations,
    make_arrays,
)
from torch_impl.optimizer import Optimizer

pytestmark = pytest.mark.slow

PARTS = 11
BETAS, EPSILON = (0.875, 0.96875), 2**-10
OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda groups: optim.SGD(groups, momentum=0.5, nesterov=True),
    "adam": lambda groups: optim.Adam(groups, betas=BETAS, eps=EPSILON),
    "adamw": lambda groups: optim.AdamW(groups, betas=BETAS, eps=EPSILON),
    "rmsprop": lambda groups: optim.RMSprop(groups, alpha=0.9375, eps=EPSILON, momentum=0.5, centered=True),
    "adagrad": lambda groups: optim.Adagrad(groups, initial_accumulator_value=0.125, eps=EPSILON),
    "adadelta": lambda groups: optim.Adadelta(groups, rho=0.9375, eps=EPSILON),
    "adamax": lambda groups: optim.Adamax(groups, betas=BETAS, eps=EPSILON),
    "nadam": lambda groups: optim.NAdam(groups, betas=BETAS, eps=EPSILON),
    "adafactor": lambda groups: optim.Adafactor(groups, beta2_decay=-0.75, eps=(EPSILON, 2**-8), d=1.25),
}
# LambdaLR if PyTorch's own scheduler depends on the rate of a group, or adds up rounding errors
SCHEDULERS: dict[str, Callable[[optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "constant": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1.0),
    "linear": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 - epoch / TOTAL),
    "cosine": lambda o: lr_scheduler.LambdaLR(o, cosine),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, TOTAL, 2),
    "cosine_restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5, 2),
    "step": lambda o: lr_scheduler.StepLR(o, 7, 0.5),
    "multi_step": lambda o: lr_scheduler.MultiStepLR(o, [5, 12], 0.5),
    "piecewise": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.5 if epoch <= 4 else 1 if epoch <= 9 else 0.25),
    "inverse_sqrt": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: (10 / (epoch + 10)) ** 0.5),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(
        o,
        [group["lr"] for group in o.param_groups],
        TOTAL,
        base_momentum=0.5,
        max_momentum=0.875,
        cycle_momentum=type(o).__name__.lower() in CYCLED,
    ),
}


class MuonWithAdamw(optim.Optimizer):
    """PyTorch's Muon for matrices that are neither embeddings nor a head, and its AdamW for the other parameters."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {})
        matrices = [
            group for group in self.param_groups if group["name"].startswith("layer") and group["params"][0].ndim == 2
        ]
        others = [group for group in self.param_groups if group not in matrices]
        self.members = [optim.Muon(matrices, momentum=0.5), optim.AdamW(others, betas=BETAS, eps=EPSILON)]

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters with the learning rates that the scheduler has set."""
        for member in self.members:
            for group in member.param_groups:
                group["lr"] = next(own["lr"] for own in self.param_groups if own["name"] == group["name"])
            member.step()


def cosine(epoch: int) -> float:
    """Return the factor of CosineAnnealingLR with eta_min = 0.25 of the rate, by its documentation."""
    return float(0.25 + 0.75 * (1 + torch.cos(torch.tensor(torch.pi * epoch / TOTAL, dtype=torch.float64))) / 2)


OPTIMIZERS["muon"] = MuonWithAdamw


@pytest.mark.parametrize("part", [0, *map(in_matrix, range(1, PARTS))])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_updates_are_those_of_pytorch(
    make_config: MakeConfig, kind: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "muon":
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # here it computes in the run's precision
    for own_kind, schedule, preset, overrides in list_combinations("aligned", part, PARTS):
        if own_kind != kind:
            continue
        parameters, expected = (
            {name: torch.nn.Parameter(torch.from_numpy(array)) for name, array in make_arrays(0).items()}
            for _ in range(2)
        )
        optimizer = Optimizer(expand(make_config(*overrides)), parameters)
        groups = []
        for name, parameter in expected.items():
            scale, decay = get_group(preset, name)
            groups.append({"name": name, "params": [parameter], "lr": RATE * scale, "weight_decay": decay})
        reference = OPTIMIZERS[kind](groups)
        scheduler = SCHEDULERS[schedule](reference)
        for step in range(1, STEPS + 1):
            for name, gradient in make_arrays(step).items():
                parameters[name].grad = torch.from_numpy(gradient.copy())
                expected[name].grad = torch.from_numpy(gradient.copy())
            optimizer.update(step)
            reference.step()
            scheduler.step()
        tolerance = 1e-6 if kind == "nadam" else 1e-12  # PyTorch's product of momentums is float32
        for name, parameter in parameters.items():
            torch.testing.assert_close(
                parameter, expected[name], rtol=tolerance, atol=tolerance, msg=f"{schedule}, {preset}: {name}"
            )
