"""Tests of the recording of scripts that update their parameters by hand, without an optimizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.torch_impl.record.scripts import (
    Tagger,
    compute_loss,
    draw_batch,
    list_functions,
    list_leftovers,
    read_facts,
    read_step,
    train,
)
from torch_impl.record import Recorder

RATE = 0.3


def compute_gradients(model: nn.Module) -> torch.Tensor:
    tokens, labels = draw_batch()
    loss = compute_loss(model(tokens), labels)
    loss.backward()
    return loss.detach()


def clear_before_pass(model: nn.Module) -> torch.Tensor:
    """Update as pytorch/examples/word_language_model does."""
    model.zero_grad()
    loss = compute_gradients(model)
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-RATE)
    return loss


def clear_before_backward(model: nn.Module) -> torch.Tensor:
    tokens, labels = draw_batch()
    loss = compute_loss(model(tokens), labels)
    for parameter in model.parameters():
        parameter.grad = None
    loss.backward()
    for parameter in model.parameters():
        parameter.data += -RATE * parameter.grad if parameter.grad is not None else 0
    return loss.detach()


@torch.no_grad()
def clear_after_update(model: nn.Module) -> torch.Tensor:
    with torch.enable_grad():
        loss = compute_gradients(model)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.sub_(RATE * parameter.grad)
            parameter.grad.zero_()
    return loss


def omit_bias(model: nn.Module) -> torch.Tensor:
    model.zero_grad()
    loss = compute_gradients(model)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and name != "layer.bias":
            parameter.data -= RATE * parameter.grad
    return loss


class Momentum:
    """Updates with a momentum of 0.9."""

    def __init__(self) -> None:
        self.velocities: dict[str, Any] = {}

    def __call__(self, model: nn.Module) -> torch.Tensor:
        model.zero_grad()
        loss = compute_gradients(model)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.velocities[name] = 0.9 * self.velocities.get(name, 0) + parameter.grad
                parameter.data -= RATE * self.velocities[name]
        return loss


def run(directory: Path | None, update: Callable[[nn.Module], torch.Tensor]) -> tuple[list[float], nn.Module]:
    """Train for 5 steps without an optimizer, and record them if there is a directory."""
    torch.manual_seed(0)
    model = Tagger()
    if directory is not None:
        Recorder(str(directory), model, None)
    return [update(model).item() for _ in range(5)], model


@pytest.mark.parametrize("update", [clear_before_pass, clear_before_backward, clear_after_update])
def test_updates_are_those_of_sgd(update: Callable[[nn.Module], torch.Tensor], tmp_path: Path) -> None:
    def step(model: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = compute_gradients(model)
        if update is clear_before_pass:
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss

    run(tmp_path / "hand", update)
    train(tmp_path / "sgd", step, build_optimizer=lambda model: torch.optim.SGD(model.parameters(), RATE))
    hand, sgd = (read_facts(tmp_path / name) for name in ("hand", "sgd"))
    assert hand["steps"] == sgd["steps"]
    assert hand["optimizer"]["name"] == sgd["optimizer"]["name"]
    for number in (1, 2, 3):
        hand_step, sgd_step = (read_step(tmp_path / name, number) for name in ("hand", "sgd"))
        assert hand_step.keys() == sgd_step.keys()
        for name, array in sgd_step.items():
            np.testing.assert_allclose(hand_step[name], array, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("update", [clear_before_pass, clear_after_update])
def test_recording_changes_nothing(update: Callable[[nn.Module], torch.Tensor], tmp_path: Path) -> None:
    functions = list_functions()
    losses, model = run(tmp_path, update)
    expected, _ = run(None, update)
    assert losses == expected
    assert not list_leftovers(model, torch.optim.SGD(model.parameters()), functions)
    assert read_facts(tmp_path)["complete"]


def test_parameter_that_the_update_omits(tmp_path: Path) -> None:
    run(tmp_path, omit_bias)
    facts = read_facts(tmp_path)["optimizer"]
    assert facts["missing"] == ["layer.bias"]
    assert facts["groups"][0]["hyperparameters"] == {"lr": RATE}


def test_update_that_is_not_one_of_sgd(tmp_path: Path) -> None:
    run(tmp_path, Momentum())
    facts = read_facts(tmp_path)
    assert facts["optimizer"]["name"] == "update by hand"
    assert any(sentence.endswith("not one of SGD without momentum") for sentence in facts["not_recorded"])


def test_optimizer_that_the_recorder_did_not_get(tmp_path: Path) -> None:
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters())
    Recorder(str(tmp_path), model, None)
    for _ in range(4):
        optimizer.zero_grad()
        compute_gradients(model)
        optimizer.step()
    assert any("pass this optimizer" in sentence for sentence in read_facts(tmp_path)["not_recorded"])


def test_last_update_is_recorded_at_the_end(tmp_path: Path) -> None:
    model = Tagger()
    recorder = Recorder(str(tmp_path), model, None)
    clear_before_pass(model)
    recorder.close()
    assert len(read_facts(tmp_path)["steps"]) == 1
    assert sorted(read_facts(tmp_path)["optimizer"]["missing"]) == []
