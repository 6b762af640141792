"""Scripts whose loss is a sum of several losses."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.recorded.walk import diagnose_records
from common.recording.operation_format import OPERATIONS
from tests.unit.torch_impl.record.scripts import read_facts
from torch_impl.record import Recorder

Outputs = tuple[torch.Tensor, torch.Tensor]
LossFunction = Callable[[Outputs, torch.Tensor, torch.Tensor], torch.Tensor]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.value = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Outputs:
        hidden = torch.relu(self.body(x))
        return self.classes(hidden), self.value(hidden)


def add(weight: float = 0.5, reduction: str = "mean", penalty: float = 0.0) -> LossFunction:
    def compute(outputs: Outputs, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        loss = functional.cross_entropy(outputs[0], y)
        loss += weight * functional.mse_loss(outputs[1], z, reduction=reduction)  # in place, as scripts do
        return loss + penalty * outputs[1].abs().mean()

    return compute


def add_in_other_order(outputs: Outputs, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    losses = functional.mse_loss(outputs[1], z, reduction="none")
    return 0.5 * losses.mean() + functional.cross_entropy(outputs[0], y)


def leave_out(outputs: Outputs, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    functional.mse_loss(outputs[1], z)  # logged only
    return functional.cross_entropy(outputs[0], y)


def replace(outputs: Outputs, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs[0], y) + 0.5 * functional.l1_loss(outputs[1], z)


def mask(outputs: Outputs, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    losses, used = functional.cross_entropy(outputs[0], y, reduction="none"), (y > 0).float()
    return (losses * used).sum() / used.sum() + 0.5 * functional.mse_loss(outputs[1], z)


def receive_another(outputs: Outputs, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs[0], y) + 0.5 * functional.mse_loss(outputs[1].sigmoid(), z)


def record(directory: Path, compute: LossFunction) -> Path:
    torch.manual_seed(0)
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Recorder(str(directory), model, optimizer)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        x, z = (torch.randn(8, size, generator=generator) for size in (5, 2))
        loss = compute(model(x), torch.arange(8) % 3, z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return directory


def diagnose(tmp_path: Path, a: LossFunction, b: LossFunction) -> Diagnosis:
    return diagnose_records(record(tmp_path / "a", a), record(tmp_path / "b", b))


def test_the_terms_add_up_to_the_loss(tmp_path: Path) -> None:
    record(tmp_path, add(weight=0.25))
    step = read_facts(tmp_path)["steps"][0]
    (terms,) = step["terms"]
    assert [term["name"] for term in terms] == ["cross_entropy", "mse_loss"]
    assert sum(term["share"] for term in terms) == pytest.approx(step["losses"][0])
    assert terms[1]["share"] == pytest.approx(0.25 * terms[1]["value"])


def test_the_recorder_does_not_change_the_gradients(tmp_path: Path) -> None:
    x, y, z = torch.randn(8, 5), torch.arange(8) % 3, torch.randn(8, 2)
    gradients = []
    for is_recorded in (False, True):
        torch.manual_seed(0)
        model = TwoHeads()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder = Recorder(str(tmp_path), model, optimizer) if is_recorded else None
        loss = add()(model(x), y, z)
        loss.backward()
        if recorder is not None:
            recorder.close()
        gradients.append([parameter.grad for parameter in model.parameters()])
        assert not loss._backward_hooks
    assert all(np.array_equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("is_first_used", [True, False])
def test_a_loss_that_is_not_used_has_no_hook_afterwards(is_first_used: bool, tmp_path: Path) -> None:
    model = TwoHeads()
    recorder = Recorder(str(tmp_path), model, torch.optim.SGD(model.parameters(), lr=0.1))
    classes, value = model(torch.randn(8, 5))
    losses = [functional.cross_entropy(classes, torch.arange(8) % 3), functional.mse_loss(value, torch.zeros(8, 2))]
    calls = [*recorder._observer.step.loss_calls]
    losses[0 if is_first_used else 1].backward()
    recorder.close()
    assert [call.hook for call in calls] == [None, None]


def record_two_losses(order: list[int], tmp_path: Path) -> list[torch.Tensor]:
    """Record a step with two losses, whose backward passes have this order. Return the losses."""
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Recorder(str(tmp_path), model, optimizer, steps=1)
    inputs = torch.randn(8, 5)
    losses = [functional.cross_entropy(model(inputs)[0], torch.arange(8) % 3)]
    losses.append(functional.mse_loss(model(inputs)[1], torch.zeros(8, 2)))
    for index in order:
        losses[index].backward()
    optimizer.step()
    return losses


def test_losses_of_two_backward_passes_have_shares(tmp_path: Path) -> None:
    losses = record_two_losses([0, 1], tmp_path)
    shares = [term["share"] for batch in read_facts(tmp_path)["steps"][0]["terms"] for term in batch]
    assert shares == pytest.approx([loss.item() for loss in losses])


@pytest.mark.parametrize("other", [add(), add_in_other_order])
def test_equal_sums_are_equal(other: LossFunction, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, add(), other)
    assert diagnosis.is_equal, diagnosis.headline


@pytest.mark.parametrize(
    ("other", "cause", "words", "is_confirmed"),
    [
        (add(0.05), "loss_weight", "the weight of the squared error in the loss is 0.5 in A and 0.05 in B", True),
        (add(0.5, "sum"), "loss_reduction", "the reduction of the squared error in the loss is mean in A", True),
        (leave_out, "missing_loss_term", "the loss of A has 0.5 times the squared error", True),
        (replace, "loss_terms", " + 0.5 times the absolute error (0.8", True),
        (add(penalty=0.1), "added_operation", "B also computes", True),
        (receive_another, "added_operation", "B also computes sigmoid", True),
        (mask, "loss_weight", "a script reduces it itself, perhaps with a mask", False),
    ],
)
def test_the_term_that_differs_is_named(
    other: LossFunction, cause: str, words: str, is_confirmed: bool, tmp_path: Path
) -> None:
    diagnosis = diagnose(tmp_path, add(), other)
    first, *others = diagnosis.causes
    assert (first.cause, first.confirmed) == (cause, is_confirmed)
    assert words in first.sentence
    # The operations name the lines of a difference that the terms do not explain
    assert [(known.cause, known.confirmed) for known in others] == ([] if is_confirmed else [("operation", False)])


def add_equal_terms(weights: list[float], penalty: float = 0.0) -> LossFunction:
    def compute(outputs: Outputs, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        loss = torch.zeros(())
        for weight in weights:  # of equal values, as those of heads that begin with zeros
            loss = loss + weight * functional.mse_loss(outputs[1], z)
        return loss + penalty * functional.l1_loss(outputs[1], z) if penalty else loss

    return compute


@pytest.mark.parametrize("weights", [[1, 0.5], [0.5, 1], [1, 0.5, 0]])
def test_terms_of_equal_values_in_another_order_are_no_cause(weights: list[float], tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, add_equal_terms([1, 0.5]), add_equal_terms(weights, penalty=0.1))
    assert [known.cause for known in diagnosis.causes] == ["missing_loss_term"]
    assert "the loss of B has 0.1 times the absolute error" in diagnosis.causes[0].sentence


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_losses_are_recorded_in_the_order_of_their_backward_passes(order: list[int], tmp_path: Path) -> None:
    losses = record_two_losses(order, tmp_path)
    step = read_facts(tmp_path)["steps"][0]
    names = ["cross_entropy", "mse_loss"]
    assert [[term["name"] for term in batch] for batch in step["terms"]] == [[names[index]] for index in order]
    assert step["losses"] == pytest.approx([losses[index].item() for index in order])
    assert step["calls"] == [1, 1]
    assert not [loss for loss in losses if loss._backward_hooks]


FUNCTIONS: list[tuple[LossFunction, list[list[str] | float]]] = [
    (lambda outputs, y, z: functional.mse_loss(outputs[1], z).sqrt(), [["sqrt"]]),
    (lambda outputs, y, z: functional.mse_loss(outputs[1], z) ** 0.5, [["pow"]]),
    (lambda outputs, y, z: functional.mse_loss(outputs[1], z) / 4, [0.25]),
    (lambda outputs, y, z: functional.mse_loss(outputs[1], z) / functional.l1_loss(outputs[1], z), [["div"], ["div"]]),
    (lambda outputs, y, z: functional.mse_loss(outputs[1], z) * functional.l1_loss(outputs[1], z), [["mul"], ["mul"]]),
    (
        lambda outputs, y, z: functional.mse_loss(outputs[1], z).sqrt() + functional.l1_loss(outputs[1], z),
        [["sqrt"], 1],
    ),
    (lambda outputs, y, z: functional.mse_loss(outputs[1], z, reduction="none").mean(1).sqrt().mean(), [["sqrt"]]),
    (lambda outputs, y, z: 1 / (1 / functional.mse_loss(outputs[1], z)), [["reciprocal"]]),
]


@pytest.mark.parametrize(("compute", "expected"), FUNCTIONS)
def test_a_share_is_only_given_if_the_loss_is_a_sum(
    compute: LossFunction, expected: list[list[str] | float], tmp_path: Path
) -> None:
    record(tmp_path, compute)
    (terms,) = read_facts(tmp_path)["steps"][0]["terms"]
    shares = [term.get("functions") or term["share"] / term["value"] for term in terms]
    assert shares == [pytest.approx(item) if isinstance(item, float | int) else item for item in expected]
    assert all((term["share"] is None) == ("functions" in term) for term in terms)


def test_a_root_of_the_loss_is_named(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, lambda outputs, y, z: functional.mse_loss(outputs[1], z), FUNCTIONS[0][0])
    (cause,) = diagnosis.causes
    assert (cause.cause, cause.confirmed) == ("added_operation", True)
    assert cause.sentence.startswith("loss: B also computes sqrt in test_loss_terms.py:")


def test_a_root_of_the_loss_is_named_without_operations(tmp_path: Path) -> None:
    diagnose(tmp_path, lambda outputs, y, z: functional.mse_loss(outputs[1], z), FUNCTIONS[0][0])
    (tmp_path / "a" / OPERATIONS).unlink()
    diagnosis = diagnose_records(tmp_path / "a", tmp_path / "b")
    words = "the loss of A is computed from the squared error; that of B from the squared error (through sqrt)"
    assert [known.sentence for known in diagnosis.causes] == [words]


@pytest.mark.parametrize("divisor", [1, 4])
@pytest.mark.parametrize("weight", [0.5, 0.05])
def test_terms_of_micro_batches_are_compared_by_their_means(weight: float, divisor: int, tmp_path: Path) -> None:
    record(tmp_path / "a", add())
    torch.manual_seed(0)
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * divisor / 4)
    Recorder(str(tmp_path / "b"), model, optimizer)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        x, z = (torch.randn(8, size, generator=generator) for size in (5, 2))
        for rows in torch.arange(8).split(2):
            (add(weight)(model(x[rows]), rows % 3, z[rows]) / divisor).backward()
        optimizer.step()
        optimizer.zero_grad()
    diagnosis = diagnose_records(tmp_path / "a", tmp_path / "b")
    named = [known for known in diagnosis.causes if known.cause == "loss_weight"]
    assert [known.confirmed for known in named] == ([True] if weight == 0.05 else [])
    if named:
        assert "the weight of the squared error in the loss is 0.5 in A and 0.05 in B" in named[0].sentence
