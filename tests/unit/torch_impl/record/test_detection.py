"""Scripts of detectors, whose batches have a list with the boxes of each image."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from common.diagnose.findings import EQUAL
from common.diagnose.recorded.walk import diagnose_records
from tests.unit.torch_impl.record.scripts import read_facts
from torch_impl.record import Recorder

Example = tuple[torch.Tensor, dict[str, torch.Tensor]]
QUERIES = 4


def _collate(examples: Sequence[Example]) -> tuple[torch.Tensor, tuple[dict[str, torch.Tensor], ...]]:
    images, targets = zip(*examples, strict=True)
    return torch.stack(images), targets


class _Examples(Dataset[Example]):
    """Images with one to three boxes each."""

    def __init__(self, seed: int) -> None:
        self._examples = _make_examples(seed)

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index]


def _make_examples(seed: int) -> list[Example]:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, QUERIES, 12)
    return [
        (
            torch.from_numpy(rng.normal(size=(5,)).astype(np.float32)),
            {"boxes": torch.from_numpy(rng.random((count, 4)).astype(np.float32)), "labels": torch.full((count,), 2)},
        )
        for count in counts
    ]


class Detector(nn.Module):
    """A model that returns boxes and classes for each query."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.classes = nn.Linear(5, QUERIES * 4), nn.Linear(5, QUERIES * 3)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.boxes(images).view(-1, QUERIES, 4), self.classes(images).view(-1, QUERIES, 3)


def _compute_loss(
    outputs: tuple[torch.Tensor, torch.Tensor], targets: Sequence[dict[str, torch.Tensor]]
) -> torch.Tensor:
    """Match the first queries with the boxes of their image."""
    boxes, classes = outputs
    counts = [len(target["boxes"]) for target in targets]
    matched = torch.cat([boxes[row, :count] for row, count in enumerate(counts)])
    labels = torch.zeros(classes.shape[:2], dtype=torch.long)
    for row, target in enumerate(targets):
        labels[row, : counts[row]] = target["labels"]
    known = torch.cat([target["boxes"] for target in targets])
    return functional.l1_loss(matched, known) + functional.cross_entropy(classes.transpose(1, 2), labels)


def _train(directory: Path, seed: int, follow: Path | None = None) -> list[float]:
    torch.manual_seed(seed)
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(str(directory), model, optimizer, follow=None if follow is None else str(follow))
    losses = []
    for images, targets in recorder.batches(DataLoader(_Examples(seed), batch_size=4, collate_fn=_collate)):
        loss = _compute_loss(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_detector_follows_another_one(tmp_path: Path) -> None:
    losses = [_train(tmp_path / "old", 0), _train(tmp_path / "new", 1, follow=tmp_path / "old")]
    assert losses[0] == losses[1]
    assert read_facts(tmp_path / "old")["steps"][0]["keys"] == {"input/0": "0"}
    diagnosis = diagnose_records(tmp_path / "old", tmp_path / "new")
    assert (diagnosis.has_equal_stages, diagnosis.omitted_stages) == (True, [])
    assert next(stage for stage in diagnosis.stages if stage.name == "data").verdict == EQUAL
