"""Tests that the formulas of PyTorch's optimizers reproduce recorded updates, and that other formulas do not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.explain.update_settings import AFTER_CORRECTION, BEFORE_CORRECTION, INSIDE_ROOT
from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.recorded import rule_comparison
from common.diagnose.recorded.optimizer_settings import OUTSIDE_ROOT, OptimizerSettings, read_optimizer_settings
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.walk import diagnose_records
from common.recording.record_reader import open_record
from tests.unit.compare_recorded_updates import compare_recorded_updates
from torch_impl.record import Recorder

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "sgd, maximize": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True, weight_decay=0.1),
    "adam, maximize": lambda p: torch.optim.Adam(p, weight_decay=0.1, maximize=True),
    "adamw": lambda p: torch.optim.AdamW(p, amsgrad=True, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, eps=1e-3, weight_decay=0.1),
    "rmsprop, momentum": lambda p: torch.optim.RMSprop(p, alpha=0.9, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr_decay=0.1, initial_accumulator_value=0.1, weight_decay=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, eps=1e-3, weight_decay=0.1, maximize=True),
    "adamax": lambda p: torch.optim.Adamax(p, eps=1e-2, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, weight_decay=0.1, eps=1e-3),
    "nadam, decoupled": lambda p: torch.optim.NAdam(p, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda p: torch.optim.RAdam(p, betas=(0.9, 0.8), weight_decay=0.1),
    "radam, decoupled": lambda p: torch.optim.RAdam(p, weight_decay=0.1, decoupled_weight_decay=True),
}


def record(
    directory: Path, build: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype = torch.float32, steps: int = 3,
    earlier_steps: int = 0,
) -> Path:  # fmt: skip
    """Record a regression. earlier_steps: steps of the optimizer before the record."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(dtype)
    inputs, labels = torch.randn(16, 4, dtype=dtype), torch.randn(16, 1, dtype=dtype)
    optimizer = build(model.parameters())
    for step in range(-earlier_steps, steps):
        if step == 0:
            Recorder(str(directory), model, optimizer, steps=steps)
        loss = torch.nn.functional.mse_loss(model(inputs + step), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return directory


def diagnose(
    tmp_path: Path, a: Callable[[Any], torch.optim.Optimizer], b: Callable[[Any], torch.optim.Optimizer]
) -> Diagnosis:
    return diagnose_records(record(tmp_path / "a", a), record(tmp_path / "b", b))


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_formulas_reproduce_the_updates(name: str, precision: str, tmp_path: Path) -> None:
    directory = record(tmp_path / "record", OPTIMIZERS[name], getattr(torch, precision), earlier_steps=2)
    checks = compare_recorded_updates(directory, precision)
    assert len([check for check in checks if check.tensor.endswith("update")]) == 3
    assert not any("step 2: slot" in check.tensor or "step 2: exp_avg_sq" in check.tensor for check in checks)
    assert [(check.tensor, check.difference) for check in checks if check.differs] == []


MISTAKES: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], Callable[[Any], torch.optim.Optimizer]]] = {
    "dampening": (lambda p: torch.optim.SGD(p, 0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, 0.9, dampening=0.1)),
    "maximize": (lambda p: torch.optim.Adam(p), lambda p: torch.optim.Adam(p, maximize=True)),
    "amsgrad": (lambda p: torch.optim.Adam(p), lambda p: torch.optim.Adam(p, amsgrad=True)),
    "rho": (lambda p: torch.optim.RMSprop(p), lambda p: torch.optim.RMSprop(p, alpha=0.9)),
    "centered": (lambda p: torch.optim.RMSprop(p), lambda p: torch.optim.RMSprop(p, centered=True)),
    "initial_accumulator_value": (
        lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.1), lambda p: torch.optim.Adagrad(p),
    ),
    "rate_decay": (lambda p: torch.optim.Adagrad(p), lambda p: torch.optim.Adagrad(p, lr_decay=0.1)),
    "epsilon": (lambda p: torch.optim.Adadelta(p), lambda p: torch.optim.Adadelta(p, eps=1e-3)),
    "betas": (lambda p: torch.optim.Adamax(p), lambda p: torch.optim.Adamax(p, betas=(0.8, 0.999))),
    "momentum_decay": (lambda p: torch.optim.NAdam(p), lambda p: torch.optim.NAdam(p, momentum_decay=1.0)),
    "weight_decay_coupled": (
        lambda p: torch.optim.RAdam(p, weight_decay=0.1, decoupled_weight_decay=True),
        lambda p: torch.optim.RAdam(p, weight_decay=0.1),
    ),
    "optimizer": (lambda p: torch.optim.Adam(p), lambda p: torch.optim.NAdam(p, lr=1e-3)),
}  # fmt: skip


@pytest.mark.parametrize("cause", MISTAKES)
def test_mistakes_are_named_first_and_alone(cause: str, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, *MISTAKES[cause])
    assert [(found.cause, found.side, found.confirmed) for found in diagnosis.causes] == [(cause, "b", True)]


class Sgd(torch.optim.SGD):
    """An optimizer of a script."""


def test_an_unknown_optimizer_is_named(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, lambda p: torch.optim.SGD(p, 0.1), lambda p: Sgd(p, 0.1))
    stage = next(stage for stage in diagnosis.stages if stage.name == "optimizer")
    assert f"not compared: the update of {__name__}.Sgd in " in stage.note


@pytest.mark.parametrize(("accumulator", "is_named"), [(0.0, True), (1e3, False)])
def test_the_place_of_an_epsilon_is_named_if_it_changes_the_update(
    accumulator: float, is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = record(tmp_path, lambda p: torch.optim.Adagrad(p, eps=1e-4, initial_accumulator_value=accumulator))
    pair = RecordPair(RecordedSide("a", open_record(path)), RecordedSide("b", open_record(path)))
    stage = Stage("hyperparameters")

    def read_as_keras(side: RecordedSide) -> dict[str, OptimizerSettings]:
        place = INSIDE_ROOT if side.name == "a" else OUTSIDE_ROOT
        return {name: replace(x, epsilon_place=place) for name, x in read_optimizer_settings(side).items()}

    monkeypatch.setattr(rule_comparison, "read_optimizer_settings", read_as_keras)
    rule_comparison.compare_epsilon_places(stage, pair)
    assert [found.cause for found in stage.causes] == ["epsilon_place"] * is_named


@pytest.mark.parametrize(("eps", "first", "is_named"), [(1e-3, 2, True), (1e-12, 2, False), (1e-3, 1, False)])
def test_the_place_of_adam_s_epsilon_explains_later_steps(
    eps: float, first: int, is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes the first update: what differs before that has another cause."""
    path = record(tmp_path, lambda p: torch.optim.Adam(p, eps=eps))
    pair = RecordPair(RecordedSide("a", open_record(path)), RecordedSide("b", open_record(path)))
    gradients = Stage("gradients", [TensorCheck("step 1: weight", 0.0), TensorCheck(f"step {first}: weight", 0.1)])
    pair.stages = [Stage("hyperparameters"), gradients]

    def read_as_keras(side: RecordedSide) -> dict[str, OptimizerSettings]:
        place = BEFORE_CORRECTION if side.name == "a" else AFTER_CORRECTION
        return {name: replace(x, epsilon_place=place) for name, x in read_optimizer_settings(side).items()}

    monkeypatch.setattr(rule_comparison, "read_optimizer_settings", read_as_keras)
    rule_comparison.explain_adam(pair)
    assert [(x.cause, x.confirmed) for x in pair.stages[0].causes] == [("epsilon_place", False)] * is_named
