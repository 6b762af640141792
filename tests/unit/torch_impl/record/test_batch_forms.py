"""Scripts whose batches are objects, have lists of lengths, or are sequences that the script cuts for its model."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from common.diagnose.recorded.walk import diagnose_records
from tests.unit.torch_impl.record.scripts import read_facts
from torch_impl.record import Recorder
from torch_impl.record.arrays import convert_array

Loss = Callable[[nn.Module, Any], torch.Tensor]
GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(0, 9, (4, 8, 5), generator=GENERATOR)  # of 4 batches
LABELS = torch.rand(4, 8, generator=GENERATOR)
LENGTHS = [[5, 4, 4, 3, 3, 2, 2, 1 + batch] for batch in range(2)] * 2
SEQUENCES = [torch.randn(steps, 1, 3, generator=GENERATOR) for steps in (4, 2, 3, 3)]


class Bag(nn.Module):
    """Scores the mean of embeddings, of as many tokens as each text has."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor, lengths: list[int] | None = None) -> torch.Tensor:
        counts = torch.tensor(lengths or [ids.shape[1]] * len(ids))
        mask = torch.arange(ids.shape[1]) < counts[:, None]
        x: torch.Tensor = self.head((self.embedding(ids) * mask[..., None]).sum(1) / counts[:, None])
        return x[:, 0]


class Cell(nn.Module):
    """A recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 + 4, 4)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(torch.cat([x, state], 1)))


def train(directory: Path, model: nn.Module, loader: Iterable[Any], lose: Loss, follow: Path | None) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(str(directory), model, optimizer, follow=None if follow is None else str(follow))
    losses = []
    for batch in recorder.batches(loader):
        optimizer.zero_grad()
        loss = lose(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[:3]


def assert_follows(tmp_path: Path, build: Callable[[], nn.Module], loaders: list[Iterable[Any]], lose: Loss) -> None:
    losses = []
    for name, loader, seed in zip(("old", "new"), loaders, (0, 1), strict=True):
        torch.manual_seed(seed)
        follow = tmp_path / "old" if seed else None
        losses.append(train(tmp_path / name, build(), loader, lose, follow))
    assert losses[0] == losses[1]
    assert diagnose_records(tmp_path / "old", tmp_path / "new").is_equal


def test_objects_with_attributes_and_lists_of_lengths_follow(tmp_path: Path) -> None:
    def make(order: list[int]) -> list[SimpleNamespace]:
        return [SimpleNamespace(text=IDS[x], lengths=LENGTHS[x], label=LABELS[x]) for x in order]

    def lose(model: nn.Module, batch: SimpleNamespace) -> torch.Tensor:
        return functional.mse_loss(model(batch.text, batch.lengths), batch.label)

    assert_follows(tmp_path, Bag, [make([0, 1, 2, 3]), make([3, 2, 1, 0])], lose)


@pytest.mark.parametrize("converts", [True, False])
def test_numpy_arrays_follow(converts: bool, tmp_path: Path) -> None:
    """The script, or its model, makes tensors of them."""

    class Sums(Bag):
        def forward(self, ids: Any, lengths: list[int] | None = None) -> torch.Tensor:
            return super().forward(torch.as_tensor(ids), lengths)

    def make(order: list[int]) -> list[dict[str, np.ndarray]]:
        return [{"ids": IDS[x].numpy(), "scores": LABELS[x].numpy().astype(np.float64)} for x in order]

    def lose(model: nn.Module, batch: dict[str, np.ndarray]) -> torch.Tensor:
        assert batch["scores"].dtype == np.float64
        ids: Any = torch.from_numpy(batch["ids"]) if converts else batch["ids"]
        return functional.mse_loss(model(ids), torch.from_numpy(batch["scores"]).float())

    assert_follows(tmp_path, Sums, [make([0, 1, 2, 3]), make([3, 2, 1, 0])], lose)


def test_lists_of_lengths_in_tuples_follow(tmp_path: Path) -> None:
    def make(order: list[int]) -> list[tuple[torch.Tensor, list[int], torch.Tensor]]:
        return [(IDS[x], LENGTHS[x], LABELS[x]) for x in order]

    def lose(model: nn.Module, batch: tuple[torch.Tensor, list[int], torch.Tensor]) -> torch.Tensor:
        return functional.mse_loss(model(batch[0], batch[1]), batch[2])

    assert_follows(tmp_path, Bag, [make([0, 1, 2, 3]), make([3, 2, 0, 1])], lose)


def test_sequences_that_the_script_cuts_follow(tmp_path: Path) -> None:
    def make(order: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(SEQUENCES[x], LABELS[x, :4][None]) for x in order]

    def lose(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        state = torch.zeros(1, 4)
        for x in batch[0]:
            state = model(x, state)
        return functional.mse_loss(state, batch[1])

    assert_follows(tmp_path, Cell, [make([0, 1, 2, 3]), make([3, 2, 1, 0])], lose)


def test_the_noise_of_a_generator_follows_in_its_place(tmp_path: Path) -> None:
    """The first noise makes images for another update."""
    arrays = [torch.randn(32, 5, generator=GENERATOR) for _ in range(2)] + [torch.rand(32, 2, generator=GENERATOR)]
    reversed_arrays = [x.flip(0) for x in arrays]
    loaders = [DataLoader(TensorDataset(*x), batch_size=8) for x in (arrays, reversed_arrays)]

    def lose(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return functional.softplus(model(batch[1])).mean()

    assert_follows(tmp_path, lambda: nn.Linear(5, 2), [*loaders], lose)


@pytest.mark.parametrize("clips_each", [False, True])
def test_clipping_of_each_micro_batch_is_recorded(clips_each: bool, tmp_path: Path) -> None:
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Recorder(str(tmp_path), model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        for index in range(2):
            model(torch.randn(4, 5)).square().mean().backward()
            if clips_each or index:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    assert [step.get("clipped_parts") for step in read_facts(tmp_path)["steps"]] == [0.5 if clips_each else None] * 3


@pytest.mark.parametrize("clips_apart", [False, True])
def test_clipping_of_each_parameter_is_recorded(clips_apart: bool, tmp_path: Path) -> None:
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Recorder(str(tmp_path), model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).square().mean().backward()
        for parameters in [[x] for x in model.parameters()] if clips_apart else [[*model.parameters()]]:
            nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
    assert ["clipped_apart" in step for step in read_facts(tmp_path)["steps"]] == [clips_apart] * 3


@pytest.mark.parametrize("clears", [False, True])
def test_gradients_of_another_optimizer_that_are_not_cleared(clears: bool, tmp_path: Path) -> None:
    """The generator's update computes gradients of the discriminator, too."""
    generator, discriminator = nn.Linear(3, 5), nn.Linear(5, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (discriminator, generator)]
    Recorder(str(tmp_path), discriminator, optimizers[0])
    for _ in range(4):
        if clears:
            optimizers[0].zero_grad()
        discriminator(torch.randn(4, 5)).square().mean().backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        discriminator(generator(torch.randn(4, 3))).square().mean().backward()
        optimizers[1].step()
    passes = [step.get("passes_of_others") for step in read_facts(tmp_path)["steps"]]
    assert passes == ([None] * 3 if clears else [None, 1, 1])


def test_an_array_takes_the_layout_of_a_sparse_tensor() -> None:
    edges = torch.eye(3).to_sparse()
    converted = convert_array(np.array([[0, 2, 0], [0, 0, 0], [1, 0, 0]], np.float32), edges)
    assert converted.layout == torch.sparse_coo
    torch.testing.assert_close(converted.to_dense(), torch.tensor([[0.0, 2, 0], [0, 0, 0], [1, 0, 0]]))
    assert convert_array(np.zeros(2, np.int64), torch.zeros(1)).dtype == torch.float32
