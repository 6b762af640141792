"""Synchronized BatchNorm over threads and over ranks against PyTorch's own on the whole batch."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from threading import BrokenBarrierError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.unit.torch_impl.ranks import Ranks
from torch_impl.batch_norm import (
    SumOverThreads,
    average_statistics,
    find_moving_statistics,
    make_sum_over_ranks,
    synchronize_batch_norm,
    use_real_rows,
)

SHARDS = [3, 1, 4]


def layer(affine: bool = True) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(5, momentum=0.3, affine=affine, dtype=torch.float64)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.linspace(0.1, 0.9, 5))
    return made


def batch(size: int) -> torch.Tensor:
    return 3 + torch.randn(size, 5, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(size))


def loss_of(outputs: torch.Tensor, first: int) -> torch.Tensor:
    """In which every output counts differently. first: the place of the first example in the whole batch."""
    weights = torch.arange(first * 30, first * 30 + outputs.numel(), dtype=outputs.dtype)
    return (outputs * torch.sin(weights).view(outputs.shape)).sum()


def assert_close(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def computed(norm: nn.Module, x: torch.Tensor, first: int = 0) -> list[torch.Tensor]:
    """Outputs, gradients of the inputs and of the parameters, moving statistics."""
    x = x.clone().requires_grad_()
    outputs = norm(x)
    loss_of(outputs, first).backward()
    assert x.grad is not None
    return [
        outputs.detach(),
        x.grad,
        *(each.grad for each in norm.parameters()),
        *find_moving_statistics(norm).values(),
    ]


def on_threads(
    norm: nn.Module, shards: list[torch.Tensor], real: Sequence[torch.Tensor] = (), counted: int | None = None
) -> list[torch.Tensor]:
    """As `computed`, each shard in a thread. counted: so many of the outputs are in the loss."""
    total = SumOverThreads(len(shards))
    synchronize_batch_norm(norm, total)
    replicas = [norm, *(deepcopy(norm) for _ in shards[1:])]
    for replica, mark in zip(replicas, real, strict=False):
        use_real_rows(replica, mark)
    for parts in zip(*(replica.parameters() for replica in replicas), strict=True):
        for part in parts[1:]:
            part.data = parts[0].data
    shards = [shard.clone().requires_grad_() for shard in shards]

    def forward(index: int) -> torch.Tensor:
        total.enter(index)
        outputs: torch.Tensor = replicas[index](shards[index])
        return outputs

    with ThreadPoolExecutor(len(shards)) as pool:
        outputs = torch.cat(list(pool.map(forward, range(len(shards)))))
    loss_of(outputs[:counted], 0).backward()
    gradients = [sum(each.grad for each in parts) for parts in zip(*(r.parameters() for r in replicas), strict=True)]
    for replica in replicas[1:]:
        assert_close(list(find_moving_statistics(replica).values()), list(find_moving_statistics(norm).values()))
    of_inputs = torch.cat([shard.grad for shard in shards if shard.grad is not None])
    return [outputs.detach(), of_inputs, *gradients, *find_moving_statistics(norm).values()]


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), affine=st.booleans())
def test_over_threads(sizes: list[int], affine: bool) -> None:
    x = batch(sum(sizes))
    assert_close(on_threads(layer(affine), list(x.split(sizes))), computed(layer(affine), x))


@given(size=st.integers(2, 3), rows=st.integers(1, 2), affine=st.booleans())
def test_rows_that_fill_up_a_batch_are_left_out(size: int, rows: int, affine: bool) -> None:
    """Each replica has an example, or a copy of the first; a layer sees so many rows of it."""
    x, norm = batch(size * rows), layer(affine)
    real = torch.tensor([[1]] * size + [[0]] * 2, dtype=torch.int32)
    shards = [*x.split(rows), x[:rows], x[:rows]]
    outputs, of_inputs, *rest = on_threads(norm, shards, real.unbind(), size * rows)
    wanted_outputs, wanted_of_inputs, *wanted = computed(layer(affine), x)
    assert_close([outputs[: size * rows], of_inputs[: size * rows], *rest], [wanted_outputs, wanted_of_inputs, *wanted])
    assert_close([of_inputs[size * rows :]], [torch.zeros_like(of_inputs[size * rows :])])


def test_a_thread_that_fails_does_not_leave_the_others_waiting() -> None:
    total = SumOverThreads(2)

    def wait() -> torch.Tensor:
        total.enter(0)
        return total(torch.ones(1))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        total.abort()
        with pytest.raises(BrokenBarrierError):
            waiting.result(10)


def test_evaluation_uses_the_moving_statistics() -> None:
    norm, own = layer().eval(), layer().eval()
    synchronize_batch_norm(norm, SumOverThreads(2))  # which would wait for the other
    torch.testing.assert_close(norm(batch(3)), own(batch(3)), rtol=0, atol=0)


def test_the_mean_of_moving_statistics_is_that_of_the_mean_batch() -> None:
    """Of two replicas, each with statistics of its own: the all-reduce is a sum with the other's."""
    one, other = layer(), layer()
    for step in range(3):
        one(batch(4 + step))
        other(batch(9 + step))
    others = iter(list(find_moving_statistics(other).values()))
    means = [
        (a + b) / 2
        for a, b in zip(find_moving_statistics(one).values(), find_moving_statistics(other).values(), strict=True)
    ]
    average_statistics(one, lambda tensor: tensor.add_(next(others)), 2)
    assert_close(list(find_moving_statistics(one).values()), means)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[list[torch.Tensor]]]]:
    directory: Path = tmp_path_factory.mktemp("ranks")
    made = Ranks(len(SHARDS), directory)
    yield made
    made.close()


def in_rank() -> list[torch.Tensor]:
    import torch.distributed as dist

    rank, norm = dist.get_rank(), layer()
    synchronize_batch_norm(norm, make_sum_over_ranks())
    return computed(norm, batch(sum(SHARDS)).split(SHARDS)[rank], sum(SHARDS[:rank]))


def test_over_ranks(ranks: Callable[..., list[list[torch.Tensor]]]) -> None:
    outputs, inputs, weight, bias, mean, variance = zip(*ranks(in_rank), strict=True)
    wanted = computed(layer(), batch(sum(SHARDS)))
    assert_close([torch.cat(outputs), torch.cat(inputs), sum(weight), sum(bias)], wanted[:4])
    for statistic, own in ((mean, wanted[4]), (variance, wanted[5])):
        assert_close(list(statistic), [own] * len(SHARDS))
