"""The average of the weights, against torch.optim.swa_utils."""

import pytest
import torch
from torch.nn import Linear
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from common.training.state import Position
from tests.conftest import MakeConfig
from torch_impl.optimizer import Optimizer

STEPS = 6


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_the_average_is_that_of_pytorch(make_config: MakeConfig, kind: str) -> None:
    overrides = ["ema.decay=0.8"] if kind == "ema" else ["swa.start_step=2", "swa.every=2"]
    config = make_config("optimizer=sgd", "schedule.warmup_steps=0", "schedule.total_steps=9", *overrides)
    torch.manual_seed(0)
    model = Linear(3, 2).double()
    expected = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8) if kind == "ema" else None)
    optimizer = Optimizer(config, dict(model.named_parameters()))
    for step in range(1, STEPS + 1):
        model(torch.randn(4, 3).double()).square().sum().backward()
        optimizer.update(step)
        if kind == "ema" or step % 2 == 0:
            expected.update_parameters(model)
    slots = {name: array.copy() for name, array in optimizer.slots().items()}
    for name, average in expected.module.named_parameters():
        torch.testing.assert_close(torch.from_numpy(slots[f"average.{name}"]), average.detach(), rtol=1e-14, atol=1e-15)

    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer.swap_averages()
    for name, parameter in model.named_parameters():
        assert parameter.tolist() == slots[f"average.{name}"].tolist() != weights[name].tolist()
    optimizer.swap_averages()
    assert all(torch.equal(parameter, weights[name]) for name, parameter in model.named_parameters())

    resumed = Optimizer(config, dict(model.named_parameters()))
    resumed.load(slots, Position(STEPS, STEPS))
    assert all((resumed.slots()[name] == array).all() for name, array in slots.items())


def test_without_an_average_there_is_no_slot(make_config: MakeConfig) -> None:
    optimizer = Optimizer(make_config("optimizer=sgd"), dict(Linear(3, 2).named_parameters()))
    assert not any(name.startswith("average.") for name in optimizer.slots())
