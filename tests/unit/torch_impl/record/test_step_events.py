"""Tests of what a recorder notices between the backward passes and the updates of a script."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.torch_impl.record.scripts import (
    Tagger,
    build_adam,
    compute_loss,
    draw_batch,
    read_facts,
    read_step,
    read_unclipped,
    train,
    update,
)
from torch_impl.record import Recorder


def update_twice(model: Any, optimizer: Any, clears: bool) -> torch.Tensor:
    optimizer.zero_grad()
    for index in range(3):
        tokens, labels = draw_batch()
        loss = compute_loss(model(tokens), labels) / 3
        loss.backward()
        if clears and index == 1:
            model.zero_grad()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("clears", [False, True])
def test_dropped_micro_batches(clears: bool, tmp_path: Path) -> None:
    train(tmp_path, lambda model, optimizer: update_twice(model, optimizer, clears))
    for step in read_facts(tmp_path)["steps"]:
        assert step.get("dropped_micro_batches") == (2 if clears else None)


@pytest.mark.parametrize(
    ("scales", "clears", "dropped"), [((1, 1), True, 2), ((0, 1), False, None), ((0,), True, None)]
)
def test_gradients_that_the_script_clears_before_the_update_are_dropped(
    scales: tuple[int, ...], clears: bool, dropped: int | None, tmp_path: Path
) -> None:
    """The gradients of a loss that is multiplied by 0 are all zero, and were not cleared."""

    def update_cleared(model: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        for scale in scales:
            tokens, labels = draw_batch()
            loss = scale * compute_loss(model(tokens), labels)
            loss.backward()
        if clears:
            optimizer.zero_grad(set_to_none=False)
        optimizer.step()
        return loss.detach()

    train(tmp_path, update_cleared)
    for step in read_facts(tmp_path)["steps"]:
        assert step["micro_batches"] == len(scales)
        assert step.get("dropped_micro_batches") == dropped
    assert any(read_step(tmp_path, 1)["gradient/head.weight"].flat) != clears


def use_functions(outputs: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return functional.mse_loss(outputs, y), functional.l1_loss(outputs, z)


def compute_by_hand(outputs: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (outputs - y).square().mean(), (outputs - z).abs().mean()


@pytest.mark.parametrize("clears", [False, True])
@pytest.mark.parametrize(
    ("compute", "labels"), [(use_functions, ("target", "target.1")), (compute_by_hand, ("operand_0", "operand_1"))]
)
def test_several_backward_passes_through_one_forward_pass_are_one_micro_batch(
    compute: Any, labels: tuple[str, str], clears: bool, tmp_path: Path
) -> None:
    """If the script sets the gradients to zero between the passes, it trains with the second loss only."""
    torch.manual_seed(0)
    model, losses = nn.Linear(3, 2), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(str(tmp_path), model, optimizer)
    batches = [(torch.randn(4, 3), torch.randn(4, 2), torch.randn(4, 2)) for _ in range(3)]
    for x, *targets in recorder.batches(batches):
        optimizer.zero_grad()
        first, second = compute(model(x), *targets)
        first.backward(retain_graph=True)
        if clears:
            optimizer.zero_grad()
        second.backward()
        optimizer.step()
        losses.append([first.item(), second.item()])
    facts = read_facts(tmp_path)
    passes = slice(int(clears), None)
    for step, values in zip(facts["steps"], losses, strict=True):
        assert (step["micro_batches"], step["calls"]) == (1, [1])
        assert step["losses"] == [pytest.approx(sum(values[passes]))]
        assert step.get("pass_losses") == (None if clears else [values])
        assert "dropped_micro_batches" not in step
        terms = values[passes] if compute is use_functions else []
        assert [term["share"] for term in step["terms"][0]] == pytest.approx(terms)
        names = [f"label/{name}" for name in labels[: len(values[passes])]]
        assert step["keys"] == {"input/0": "0", **dict(zip(names, "12"[passes], strict=True))}
    arrays = read_step(tmp_path, 1)
    stored = {name: array for name, array in arrays.items() if "/label/" in name or "/other/" in name}
    expected = dict(zip((f"batch/0/label/{name}" for name in labels), batches[0][1:][passes], strict=False))
    expected |= {"batch/0/other/1": batches[0][1]} if clears else {}
    assert stored.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(stored[name], array)
    assert facts["complete"]
    assert not (tmp_path / "operations.json").exists()  # the list ends before the second loss


def test_a_later_pass_that_leaves_the_gradients_of_the_model_is_no_part_of_its_step(tmp_path: Path) -> None:
    model, head = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Recorder(str(tmp_path), model, optimizer, steps=1)
    optimizer.zero_grad()
    outputs = model(torch.randn(4, 3))
    loss = functional.mse_loss(outputs, torch.randn(4, 2))
    loss.backward(retain_graph=True)
    functional.mse_loss(head(outputs), torch.randn(4, 1)).backward(inputs=[*head.parameters()])
    optimizer.step()
    (step,) = read_facts(tmp_path)["steps"]
    assert step["losses"] == [pytest.approx(loss.item())]
    assert "pass_losses" not in step


class SharpnessAware(torch.optim.Optimizer):
    """Moves the weights towards a higher loss, and updates by another optimizer with the gradients of that place."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self, share: float) -> None:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.add_(share * self.state[parameter].setdefault("gradient", parameter.grad.clone()))


def test_the_first_pass_of_sharpness_aware_minimization_is_not_dropped(tmp_path: Path) -> None:
    def update_by_two_passes(model: Any, optimizer: Any) -> torch.Tensor:
        tokens, labels = draw_batch()
        compute_loss(model(tokens), labels).backward()
        optimizer.climb(0.05)
        optimizer.zero_grad()
        loss = compute_loss(model(tokens), labels)
        loss.backward()
        optimizer.climb(-0.05)
        optimizer.base.step()
        optimizer.zero_grad()
        optimizer.state.clear()
        return loss.detach()

    train(tmp_path, update_by_two_passes, build_optimizer=lambda model: SharpnessAware(model.parameters()))
    facts = read_facts(tmp_path)
    assert [step["micro_batches"] for step in facts["steps"]] == [2, 2, 2]
    assert not any("dropped_micro_batches" in step for step in facts["steps"])
    assert facts["optimizer"]["name"] == "torch.optim.sgd.SGD"


@pytest.mark.parametrize("is_averaged", [False, True])
def test_weights_that_change_between_updates(is_averaged: bool, tmp_path: Path) -> None:
    def update_and_average(model: Any, optimizer: Any) -> torch.Tensor:
        loss = update_twice(model, optimizer, clears=False)
        if is_averaged:
            model.head.weight.data.mul_(0.99)
        return loss

    train(tmp_path, update_and_average)
    steps = read_facts(tmp_path)["steps"]
    assert [step.get("changed_weights") for step in steps] == [None, *[["head.weight"] if is_averaged else None] * 2]
    for step in (2, 3) if is_averaged else ():
        after = read_step(tmp_path, step - 1)["weight/head.weight"]
        np.testing.assert_allclose(read_step(tmp_path, step)["changed_weight/head.weight"], 0.99 * after, rtol=1e-6)


def test_gradients_are_unclipped_after_the_script_divided_them(tmp_path: Path) -> None:
    def update_divided(model: Any, optimizer: Any) -> torch.Tensor:
        tokens, labels = draw_batch()
        optimizer.zero_grad()
        loss = compute_loss(model(tokens), labels)
        loss.backward()
        divided = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        for gradient in divided:
            gradient /= 4
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        norms.append(float(norm))
        optimizer.step()
        return loss.detach()

    norms: list[float] = []
    train(tmp_path, update_divided)
    unclipped = read_unclipped(tmp_path, 1).values()
    assert np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in unclipped)) == pytest.approx(norms[0])


def test_the_backward_passes_of_another_model_are_no_micro_batches(tmp_path: Path) -> None:
    """A generator is recorded, whose discriminator trains on its outputs in the same loop."""
    torch.manual_seed(0)
    generator, discriminator = nn.Linear(3, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, discriminator)]
    Recorder(str(tmp_path), generator, optimizers[0])
    criterion = nn.BCEWithLogitsLoss()
    for _ in range(4):
        discriminator.zero_grad()
        criterion(discriminator(torch.randn(5, 4)), torch.ones(5, 1)).backward()
        images = generator(torch.randn(5, 3))
        criterion(discriminator(images.detach()), torch.zeros(5, 1)).backward()
        optimizers[1].step()
        generator.zero_grad()
        criterion(discriminator(images), torch.ones(5, 1)).backward()
        optimizers[0].step()
    facts = read_facts(tmp_path)
    assert [step["micro_batches"] for step in facts["steps"]] == [1, 1, 1]
    assert facts["not_recorded"] == []


@pytest.mark.parametrize("is_generator_first", [False, True])
def test_the_passes_of_a_generator_through_its_discriminator_are_no_micro_batches(
    is_generator_first: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    generator, discriminator = nn.Linear(3, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, discriminator)]
    Recorder(str(tmp_path), discriminator, optimizers[1])
    criterion, losses = nn.BCEWithLogitsLoss(), []

    def update_generator() -> None:
        generator.zero_grad()
        criterion(discriminator(generator(torch.randn(5, 3))), torch.ones(5, 1)).backward()
        optimizers[0].step()

    for _ in range(4):
        if is_generator_first:
            update_generator()
        discriminator.zero_grad()
        terms = [
            criterion(discriminator(images), torch.full((5, 1), label))
            for images, label in ((torch.randn(5, 4), 1.0), (generator(torch.randn(5, 3)).detach(), 0.0))
        ]
        for term in terms:
            term.backward()
        optimizers[1].step()
        losses.append([term.item() for term in terms])
        if not is_generator_first:
            update_generator()
    facts = read_facts(tmp_path)
    assert [step["losses"] for step in facts["steps"]] == losses[:3]
    assert [step.get("dropped_micro_batches") for step in facts["steps"]] == [None] * 3
    tensors = read_step(tmp_path, 1)
    np.testing.assert_array_equal(tensors["batch/0/label/target"], np.ones((5, 1)))
    assert len(facts["model"]["layers"]) == 1


@pytest.mark.parametrize("first", ["step before the loop", "cleared gradients", "skipped step"])
def test_slots_are_those_of_the_first_step_that_updates(first: str, tmp_path: Path) -> None:
    model = Tagger()
    optimizer = build_adam(model)
    Recorder(str(tmp_path), model, optimizer)
    scaler = torch.amp.GradScaler("cpu", enabled=first == "skipped step")
    if first == "step before the loop":
        optimizer.step()  # silences the warning of a scheduler
    else:
        tokens, labels = draw_batch()
        scaler.scale(compute_loss(model(tokens), labels) * float("inf")).backward()
        if first == "cleared gradients":
            optimizer.zero_grad()
        scaler.step(optimizer)
        scaler.update()
    update(model, optimizer)
    update(model, optimizer)
    have_slots = [any(name.startswith("slot/") for name in read_step(tmp_path, number)) for number in (1, 2, 3)]
    assert have_slots == [False, True, False]
    note = {"cleared gradients": "stepped without gradients", "step before the loop": "stepped without a backward"}
    assert [note[first] in sentence for sentence in read_facts(tmp_path)["not_recorded"]] == [True] * (first in note)
