"""Tests of synchronized BatchNorm on threads and on ranks against PyTorch's BatchNorm on the whole batch."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from inspect import signature
from pathlib import Path
from threading import BrokenBarrierError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from common.errors import UserError
from tests.unit.torch_impl.ranks import Ranks
from torch_impl.batch_norm import (
    average_statistics,
    find_moving_statistics,
    synchronize_batch_norm,
    use_real_rows,
)
from torch_impl.communication.replica_sums import SumOverThreads, make_sum_over_ranks

SHARDS = [3, 1, 4]


def make_layer(affine: bool = True) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(5, momentum=0.3, affine=affine, dtype=torch.float64)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.linspace(0.1, 0.9, 5))
    return norm


def make_batch(size: int) -> torch.Tensor:
    return 3 + torch.randn(size, 5, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(size))


def compute_loss(outputs: torch.Tensor, first: int) -> torch.Tensor:
    """Return a loss that weights every output differently. `first` is the index of the first example in the batch."""
    weights = torch.arange(first * 30, first * 30 + outputs.numel(), dtype=outputs.dtype)
    return (outputs * torch.sin(weights).view(outputs.shape)).sum()


def assert_close(tensors: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for tensor, expected_tensor in zip(tensors, expected, strict=True):
        torch.testing.assert_close(tensor, expected_tensor, rtol=1e-11, atol=1e-11)


def compute(norm: nn.Module, x: torch.Tensor, first: int = 0) -> list[torch.Tensor]:
    """Return the outputs, the gradients of the inputs and of the parameters, and the moving statistics."""
    x = x.clone().requires_grad_()
    outputs = norm(x)
    compute_loss(outputs, first).backward()
    assert x.grad is not None
    return [
        outputs.detach(),
        x.grad,
        *(parameter.grad for parameter in norm.parameters()),
        *find_moving_statistics(norm).values(),
    ]


def compute_on_threads(
    norm: nn.Module, shards: list[torch.Tensor], real: Sequence[torch.Tensor] = (), counted: int | None = None
) -> list[torch.Tensor]:
    """Return what `compute` returns, with a thread for each shard. `counted` outputs are in the loss."""
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
    compute_loss(outputs[:counted], 0).backward()
    gradients = [sum(copy.grad for copy in copies) for copies in zip(*(r.parameters() for r in replicas), strict=True)]
    for replica in replicas[1:]:
        assert_close(list(find_moving_statistics(replica).values()), list(find_moving_statistics(norm).values()))
    of_inputs = torch.cat([shard.grad for shard in shards if shard.grad is not None])
    return [outputs.detach(), of_inputs, *gradients, *find_moving_statistics(norm).values()]


@pytest.mark.slow
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), affine=st.booleans())
def test_statistics_over_threads_are_those_of_the_whole_batch(sizes: list[int], affine: bool) -> None:
    x = make_batch(sum(sizes))
    assert_close(compute_on_threads(make_layer(affine), list(x.split(sizes))), compute(make_layer(affine), x))


@given(size=st.integers(2, 3), rows=st.integers(1, 2), affine=st.booleans())
def test_padding_rows_do_not_count(size: int, rows: int, affine: bool) -> None:
    """Every replica has an example or, as padding, a copy of the first; a layer receives several rows of it."""
    x, norm = make_batch(size * rows), make_layer(affine)
    real = torch.tensor([[1]] * size + [[0]] * 2, dtype=torch.int32)
    shards = [*x.split(rows), x[:rows], x[:rows]]
    outputs, of_inputs, *others = compute_on_threads(norm, shards, real.unbind(), size * rows)
    expected_outputs, expected_of_inputs, *expected = compute(make_layer(affine), x)
    assert_close(
        [outputs[: size * rows], of_inputs[: size * rows], *others], [expected_outputs, expected_of_inputs, *expected]
    )
    assert_close([of_inputs[size * rows :]], [torch.zeros_like(of_inputs[size * rows :])])


def test_abort_ends_the_wait_of_other_threads() -> None:
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
    norm, reference = make_layer().eval(), make_layer().eval()
    synchronize_batch_norm(norm, SumOverThreads(2))  # a sum would wait for the other thread
    torch.testing.assert_close(norm(make_batch(3)), reference(make_batch(3)), rtol=0, atol=0)


def test_average_statistics_sets_the_mean_over_replicas() -> None:
    """There are two replicas with separate statistics. The all-reduce adds those of the second to the first's."""
    one, other = make_layer(), make_layer()
    for step in range(3):
        one(make_batch(4 + step))
        other(make_batch(9 + step))
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
    processes = Ranks(len(SHARDS), directory)
    yield processes
    processes.close()


def compute_in_rank() -> list[torch.Tensor]:
    import torch.distributed as dist

    rank, norm = dist.get_rank(), make_layer()
    synchronize_batch_norm(norm, make_sum_over_ranks(timeout=20))
    return compute(norm, make_batch(sum(SHARDS)).split(SHARDS)[rank], sum(SHARDS[:rank]))


def compare_compiled_layer() -> bool:
    """Check that a layer that Dynamo traces computes what it computes without, in a rank."""
    import torch._dynamo  # a compiled model imports it before its layers are synchronized
    import torch.distributed as dist

    rank, sum_over_ranks = dist.get_rank(), make_sum_over_ranks(timeout=20)
    layers = [make_layer(), make_layer()]
    for layer in layers:
        synchronize_batch_norm(layer, sum_over_ranks)
    layers[1].forward = torch.compile(layers[1].forward, backend="eager")  # type: ignore[method-assign]
    shard = make_batch(sum(SHARDS)).split(SHARDS)[rank]
    expected, compiled = (compute(layer, shard, sum(SHARDS[:rank])) for layer in layers)
    assert_close(compiled, expected)
    return True


@pytest.mark.slow
def test_a_compiled_layer_sums_over_ranks(ranks: Callable[..., list[bool]]) -> None:
    assert ranks(compare_compiled_layer) == [True] * len(SHARDS)


@pytest.mark.slow
def test_statistics_over_ranks_are_those_of_the_whole_batch(ranks: Callable[..., list[list[torch.Tensor]]]) -> None:
    outputs, inputs, weight, bias, mean, variance = zip(*ranks(compute_in_rank), strict=True)
    expected = compute(make_layer(), make_batch(sum(SHARDS)))
    assert_close([torch.cat(outputs), torch.cat(inputs), sum(weight), sum(bias)], expected[:4])
    for of_ranks, statistic in ((mean, expected[4]), (variance, expected[5])):
        assert_close(list(of_ranks), [statistic] * len(SHARDS))


def test_moving_statistics_without_a_momentum_are_the_mean_of_all_batches() -> None:
    norm = nn.BatchNorm2d(5, momentum=None, dtype=torch.float64)
    synchronized = deepcopy(norm)
    synchronize_batch_norm(synchronized, lambda x: x)
    for size in (2, 3, 4):
        norm(make_batch(size))
        synchronized(make_batch(size))
    assert_close([*find_moving_statistics(synchronized).values()], [*find_moving_statistics(norm).values()])


@pytest.mark.skipif("bias" not in signature(nn.BatchNorm2d).parameters, reason="this PyTorch has no bias=False")
def test_a_layer_without_a_bias_has_the_statistics_of_the_batch() -> None:
    norm = nn.BatchNorm2d(5, dtype=torch.float64, bias=False)
    synchronized = deepcopy(norm)
    synchronize_batch_norm(synchronized, lambda x: x)
    assert_close(compute(synchronized, make_batch(3)), compute(norm, make_batch(3)))


def test_parameters_in_bfloat16_normalize_in_float32() -> None:
    """Use parameters as fsdp with param_dtype=bfloat16 gathers them."""
    norm = nn.BatchNorm2d(5)
    expected = deepcopy(norm)(make_batch(3).float())
    synchronize_batch_norm(norm, lambda x: x)
    norm.weight.data, norm.bias.data = norm.weight.data.bfloat16(), norm.bias.data.bfloat16()
    torch.testing.assert_close(norm(make_batch(3).float()), expected)


class OwnForward(nn.BatchNorm2d):
    """A BatchNorm with a forward pass of its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


def test_a_layer_with_its_own_forward_pass_is_refused() -> None:
    model = nn.Sequential(nn.Identity(), OwnForward(5))
    with pytest.raises(UserError, match=r"layer 1 \(OwnForward\) is a BatchNorm with a forward pass of its own"):
        synchronize_batch_norm(model, lambda x: x)
