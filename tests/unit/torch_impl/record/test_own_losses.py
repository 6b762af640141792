"""Scripts that compute their loss without a loss function of PyTorch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from common.diagnose.recorded.walk import diagnose_records
from tests.unit.torch_impl.record.scripts import read_facts, read_step
from torch_impl.record import Recorder

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CROSS_ENTROPIES: list[LossFunction] = [
    lambda logits, y: -(functional.one_hot(y, 3) * logits.log_softmax(1)).sum(1).mean(),
    lambda logits, y: -logits.log_softmax(1)[torch.arange(8), y].mean(),
    lambda logits, y: -logits.log_softmax(1).gather(1, y[:, None]).mean(),
    lambda logits, y: -logits.log_softmax(1).mul(torch.eye(3)[y]).sum() / len(y),
    lambda logits, y: -torch.gather(logits.log_softmax(1), dim=1, index=y[:, None]).mean(),
    lambda logits, y: -torch.multiply(torch.eye(3)[y], logits.log_softmax(1)).sum() / len(y),
]
SQUARED_ERRORS: list[LossFunction] = [
    lambda outputs, z: ((outputs - z) ** 2).mean(),
    lambda outputs, z: (z - outputs).pow(2).mean(),
    lambda outputs, z: outputs.sub(z).square().mean(),
    lambda outputs, z: torch.sub(outputs, z).square().mean(),
    lambda outputs, z: torch.subtract(z, outputs).pow(2).mean(),
    lambda outputs, z: ((outputs / z - 1) * z).pow(2).mean(),
]


def train(directory: Path | None, compute: LossFunction, are_classes: bool, follow: Path | None = None) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1 if follow is None else 2)
    batches = []
    for _ in range(4):
        labels = torch.randint(3, (8,), generator=generator) if are_classes else torch.randn(8, 3, generator=generator)
        batches.append((torch.randn(8, 5, generator=generator), labels))
    if directory is not None:
        options = {} if follow is None else {"follow": str(follow)}
        recorder = Recorder(str(directory), model, optimizer, **options)  # type: ignore[arg-type]
    losses = []
    for x, labels in batches if follow is None else recorder.batches(batches):
        loss = compute(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("compute", [*CROSS_ENTROPIES, *SQUARED_ERRORS])
def test_the_labels_of_an_own_loss_are_recorded_compared_and_followed(compute: LossFunction, tmp_path: Path) -> None:
    are_classes = compute in CROSS_ENTROPIES

    def compute_known(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (functional.cross_entropy if are_classes else functional.mse_loss)(outputs, labels)

    methods = {**vars(torch.Tensor)}
    assert train(tmp_path / "own", compute, are_classes) == train(None, compute, are_classes)
    assert {**vars(torch.Tensor)} == methods
    train(tmp_path / "known", compute_known, are_classes)
    train(tmp_path / "following own", compute_known, are_classes, follow=tmp_path / "own")
    train(tmp_path / "following known", compute, are_classes, follow=tmp_path / "known")
    for a, b in (("known", "own"), ("own", "following own"), ("known", "following known")):
        diagnosis = diagnose_records(tmp_path / a, tmp_path / b)
        assert diagnosis.is_equal, diagnosis.headline


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (
            lambda logits, y: -logits.softmax(1).log_softmax(1).gather(1, y[:, None]).mean(),
            "that of B is cross entropy of probabilities taken as logits, mean",
        ),
        (lambda logits, y: -logits.log_softmax(1).gather(1, (2 - y)[:, None]).mean(), "step 1: label target of B"),
    ],
)
def test_a_mistake_in_an_own_loss_is_named(compute: LossFunction, words: str, tmp_path: Path) -> None:
    train(tmp_path / "known", lambda logits, y: functional.cross_entropy(logits, y), are_classes=True)
    train(tmp_path / "own", compute, are_classes=True)
    assert words in diagnose_records(tmp_path / "known", tmp_path / "own").headline


@pytest.mark.parametrize(
    "compute",
    [
        # The recorder does not see `torch.einsum`, so that the only operand is a mask
        lambda logits, y: -(torch.einsum("ij,ij->i", logits.log_softmax(1), torch.eye(3)[y]) * torch.ones(8)).mean(),
        lambda logits, y: -(torch.einsum("ij,ij->i", logits.log_softmax(1), torch.eye(3)[y]) * (y >= 0)).mean(),
        lambda logits, y: -(torch.einsum("ij,ij->i", logits.log_softmax(1), torch.eye(3)[y]) * (y * 0 + 1)).mean(),
    ],
)
def test_a_mask_is_no_label(compute: LossFunction, tmp_path: Path) -> None:
    train(tmp_path / "known", functional.cross_entropy, are_classes=True)
    train(tmp_path / "own", compute, are_classes=True)
    for a, b in (("known", "own"), ("own", "known")):
        diagnosis = diagnose_records(tmp_path / a, tmp_path / b)
        assert diagnosis.is_equal, diagnosis.headline


def test_a_script_that_follows_says_that_its_labels_may_be_none(tmp_path: Path) -> None:
    train(tmp_path / "own", CROSS_ENTROPIES[1], are_classes=True)
    train(tmp_path / "following", functional.cross_entropy, are_classes=True, follow=tmp_path / "own")
    notes = read_facts(tmp_path / "following")["not_recorded"]
    assert any("1 gets label operand_0" in note for note in notes)


def test_a_loss_of_many_operations_has_no_labels(tmp_path: Path) -> None:
    def compute(outputs: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        losses = [((outputs[row] - z[row]) ** 2).mean() for row in range(8) for _ in range(10)]
        return torch.stack(losses).mean()

    train(tmp_path, compute, are_classes=False)
    assert not [name for name in read_step(tmp_path, 1) if "label" in name]
    assert any(note.startswith("labels and loss function") for note in read_facts(tmp_path)["not_recorded"])


def test_the_recorder_of_another_model_does_not_hide_the_labels(tmp_path: Path) -> None:
    other = nn.Linear(2, 2)
    recorder = Recorder(str(tmp_path / "other"), other, torch.optim.SGD(other.parameters(), lr=0.1))
    train(tmp_path / "own", SQUARED_ERRORS[0], are_classes=False)
    recorder.close()
    assert "batch/0/label/operand_0" in read_step(tmp_path / "own", 1)


def test_tensors_without_values_do_not_end_the_record(tmp_path: Path) -> None:
    def compute(outputs: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda output, label: ((output - label) ** 2).mean())(outputs, z).mean()

    train(tmp_path, compute, are_classes=False)
    assert read_facts(tmp_path)["complete"]
    assert not [name for name in read_step(tmp_path, 1) if "label" in name]


@pytest.mark.parametrize("is_selected", [True, False])
def test_a_selection_before_a_loss_function_is_named_as_not_recorded(is_selected: bool, tmp_path: Path) -> None:
    def compute(outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        values = outputs.gather(1, actions[:, None]) if is_selected else outputs[:, :1]
        return functional.smooth_l1_loss(values, torch.ones(8, 1))

    train(tmp_path, compute, are_classes=True)
    notes = read_facts(tmp_path)["not_recorded"]
    assert any("by indices or a mask of its own" in note for note in notes) is is_selected


class LossOfExamples(nn.Module):
    """A loss function that returns a loss for each example."""

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return ((outputs - labels) ** 2).mean(1)


def test_a_loss_function_within_the_model_that_the_script_calls_is_no_call_of_the_model(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("network", nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Recorder(str(tmp_path), model, optimizer)
    loss_function = LossOfExamples()
    outputs, labels = model(torch.randn(8, 5)), torch.randn(8, 3)
    model.add_module("loss", loss_function)
    loss_function(outputs * 1.0, labels).mean().backward()
    optimizer.step()
    assert read_facts(tmp_path)["steps"][0]["calls"] == [1]
    assert "batch/0/label/operand_0" in read_step(tmp_path, 1)
