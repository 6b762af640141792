"""Scripts whose batches have arrays that neither the model nor a loss function receives."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from common.diagnose.recorded.walk import diagnose_records
from common.errors import UserError
from tests.unit.torch_impl.record.scripts import read_step
from torch_impl.record import Recorder

Compute = Callable[[nn.Module, list[torch.Tensor]], torch.Tensor]
X, Y, WEIGHTS = torch.randn(24, 5), torch.rand(24, 3), torch.rand(24, 3) + 0.5


def _weigh(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    losses = functional.mse_loss(model(batch[0]), batch[1], reduction="none")
    return (losses * batch[2]).mean()


def _weigh_by_sums(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return ((model(batch[0]) - batch[1]) * torch.cumsum(batch[2], 1)).square().mean()


def _join_views(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    first, second = model(torch.cat([batch[0], batch[1]])).chunk(2)
    return (first - second).square().mean()


def train(
    directory: Path, compute: Compute, arrays: tuple[torch.Tensor, ...], follow: Path | None = None, late: bool = False
) -> list[float]:
    """Train on batches of 8 examples. late: return each batch of the loader one step late, as Accelerate does."""
    torch.manual_seed(0 if follow is None else 1)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(str(directory), model, optimizer, follow=follow if follow is None else str(follow))
    loader = DataLoader(TensorDataset(*arrays), batch_size=8, shuffle=follow is not None)
    batches: Iterable[list[torch.Tensor]] = _return_late(loader) if late else loader
    losses = []
    for batch in batches if follow is None else recorder.batches(batches):
        loss = compute(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _return_late(loader: DataLoader) -> Iterable[list[torch.Tensor]]:
    iterator = iter(loader)
    batch = next(iterator)
    for following in iterator:
        yield batch
        batch = following
    yield batch


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("compute", [_weigh, _weigh_by_sums])
def test_arrays_that_only_the_script_uses_are_recorded_and_followed(
    compute: Compute, late: bool, tmp_path: Path
) -> None:
    method = _BaseDataLoaderIter.__next__
    losses = train(tmp_path / "old", compute, (X, Y, WEIGHTS), late=late)
    assert _BaseDataLoaderIter.__next__ is method
    for step in (1, 2, 3):
        np.testing.assert_array_equal(read_step(tmp_path / "old", step)["batch/0/other/2"], WEIGHTS[8 * step - 8 :][:8])
    assert train(tmp_path / "new", compute, (X, Y, WEIGHTS), follow=tmp_path / "old", late=late) == losses
    assert diagnose_records(tmp_path / "old", tmp_path / "new").is_equal


def test_views_that_a_script_joins_are_recorded_and_followed(tmp_path: Path) -> None:
    losses = train(tmp_path / "old", _join_views, (X, -X.flip(1)))
    assert train(tmp_path / "new", _join_views, (X, -X.flip(1)), follow=tmp_path / "old") == losses


def test_an_array_that_the_model_and_the_loss_receive_is_recorded_once(tmp_path: Path) -> None:
    train(tmp_path, lambda model, batch: functional.mse_loss(model(batch[0]), batch[1]), (X, Y))
    assert not [name for name in read_step(tmp_path, 1) if "/other/" in name]


def test_what_a_script_computed_from_a_batch_that_is_not_recorded_is_refused(tmp_path: Path) -> None:
    """The list of batches does not pass through `recorder.batches`: what the script computed from the weights is."""

    def train_on_list(directory: Path, follow: Path | None) -> None:
        model = nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder = Recorder(str(directory), model, optimizer, follow=None if follow is None else str(follow))
        batches = [(X[:8], WEIGHTS[:8])] * 3
        for x, weights in batches if follow is None else recorder.batches(batches):
            (model(x) * torch.cumsum(weights, 1)).square().mean().backward()
            optimizer.step()

    train_on_list(tmp_path / "old", None)
    with pytest.raises(UserError, match=r"computed from its batch in test_loader_batches\.py:\d+; let its batches"):
        train_on_list(tmp_path / "new", tmp_path / "old")


@pytest.mark.parametrize("is_generator", [False, True])
def test_labels_that_only_an_index_receives_are_those_of_the_loop(is_generator: bool, tmp_path: Path) -> None:
    """A one-hot code is computed from the labels. The batches come from a list, or from a generator of the script."""
    labels = torch.randint(0, 3, (24,))

    def train_on_codes(directory: Path, follow: Path | None) -> list[float]:
        torch.manual_seed(0 if follow is None else 1)
        model, losses = nn.Linear(5, 3), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder = Recorder(str(directory), model, optimizer, follow=None if follow is None else str(follow))
        order = torch.arange(24) if follow is None else torch.randperm(24)
        batches = [(X[order[i : i + 8]], labels[order[i : i + 8]]) for i in range(0, 24, 8)]
        for x, y in recorder.batches((batch for batch in batches) if is_generator else batches):
            scores = torch.log_softmax(model(x), 1)
            loss = -(torch.zeros_like(scores).scatter(1, y.view(-1, 1), 1) * scores).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    losses = train_on_codes(tmp_path / "old", None)
    assert [name for name in read_step(tmp_path / "old", 1) if "/other/" in name] == ["batch/0/other/1"]
    assert train_on_codes(tmp_path / "new", tmp_path / "old") == losses
