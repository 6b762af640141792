"""Tests of the momentum of BatchNorm layers, which has an effect in training mode only."""

from pathlib import Path

import pytest
import torch
from torch import nn

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.recorded.walk import diagnose_records
from torch_impl.record import Recorder


def _train(directory: Path, momentum: float, is_frozen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum), nn.Linear(4, 2))
    model[1].train(not is_frozen)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    Recorder(str(directory), model, optimizer)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 3, generator=generator)).square().mean().backward()
        optimizer.step()


def _diagnose(directory: Path, momenta: tuple[float, float], is_frozen: bool) -> Diagnosis:
    for name, momentum in zip("ab", momenta, strict=True):
        _train(directory / name, momentum, is_frozen)
    return diagnose_records(directory / "a", directory / "b")


@pytest.mark.parametrize(("momenta", "is_frozen"), [((0.01, 1 - 0.99), False), ((0.01, 0.1), True)])
def test_rounding_and_momenta_of_frozen_layers_are_no_difference(
    momenta: tuple[float, float], is_frozen: bool, tmp_path: Path
) -> None:
    diagnosis = _diagnose(tmp_path, momenta, is_frozen)
    assert diagnosis.is_equal, diagnosis.headline


def test_another_momentum_is_named(tmp_path: Path) -> None:
    causes = _diagnose(tmp_path, (0.01, 0.1), is_frozen=False).causes
    assert causes[0].cause == "moving_statistics"
