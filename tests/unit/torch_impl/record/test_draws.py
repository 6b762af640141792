"""Tests of the layers whose code draws random numbers."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from common.diagnose.recorded.walk import diagnose_records
from common.recording.record_reader import open_record
from torch_impl.record import Recorder


class Noisy(nn.Module):
    """A model with a layer that drops elements by a function, or that adds noise."""

    class Block(nn.Module):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.linear, self.rate = nn.Linear(4, 4), rate

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.dropout(self.linear(x), self.rate, self.training)

    def __init__(self, rate: float, noise: float) -> None:
        super().__init__()
        self.block, self.dropout, self.head = self.Block(rate), nn.Dropout(rate), nn.Linear(4, 2)
        self.noise = noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.block(x))
        logits: torch.Tensor = self.head(x + self.noise * torch.randn_like(x) if self.noise else x)
        return logits


def record(directory: Path, seed: int, rate: float, noise: float, follow: Path | None = None) -> Path:
    torch.manual_seed(0)
    model = Noisy(rate, noise)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(3)]
    torch.manual_seed(seed)
    recorder = Recorder(str(directory), model, optimizer, follow=None if follow is None else str(follow))
    for features, labels in batches if follow is None else recorder.batches(batches):
        optimizer.zero_grad()
        functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
    return directory


@pytest.mark.parametrize(
    ("rate", "noise", "expected"),
    [(0.0, 0.0, []), (0.5, 0.0, ["block", "dropout"]), (0.0, 1.0, ["model"])],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_other_random_numbers_are_no_difference(
    seed: int, rate: float, noise: float, expected: list[str], tmp_path: Path
) -> None:
    a = record(tmp_path / "a", 1, rate, noise)
    diagnosis = diagnose_records(a, record(tmp_path / "b", seed, rate, noise, follow=a))
    assert [(cause.cause, cause.sentence) for cause in diagnosis.causes] == []
    stages = {stage.name: stage for stage in diagnosis.stages}
    if expected and seed == 2:
        assert f"draws its own random numbers, such as dropout masks, in {expected[-1]}" in stages["loss"].note
    else:
        assert stages["loss"].checks
        assert not stages["loss"].note


def test_child_called_model_is_not_the_model(tmp_path: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.head = Noisy.Block(0.5), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.model(x))
            return logits

    model = Wrapper()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Recorder(str(tmp_path), model, optimizer, steps=1)
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    opened = open_record(tmp_path)
    facts = opened.facts["model"]
    assert facts is not None
    assert [layer["path"] for layer in facts["layers"]] == ["model", "model_1", "model.linear", "head"]
    assert facts["random_layers"] == ["model_1"]
    trace = opened.ranks[0].operations
    assert trace is not None
    assert {operation["name"]: operation["layer"] for operation in trace["operations"]}["dropout"] == "model_1"
    assert {"layer/model_1/input", "layer/model_1/output"} <= {*trace["names"]}
