"""Short draws of random numbers for large initial weights."""

import torch

from torch_impl.repeated_draws import COUNT, repeat_draws


def test_only_large_weights_repeat() -> None:
    torch.manual_seed(0)
    expected = torch.nn.Linear(20, 30).weight
    draw = torch.Tensor.uniform_
    with repeat_draws():
        torch.manual_seed(0)
        small, large = torch.nn.Linear(20, 30).weight, torch.nn.Embedding(COUNT // 100, 250).weight.detach()
    assert torch.equal(small, expected)
    numbers = large.view(-1)
    assert torch.equal(numbers[COUNT:], numbers[: len(numbers) - COUNT])
    assert abs(numbers.std() - 1) < 0.01
    assert len(torch.unique(large[:, 0])) > 0.99 * len(large)  # no two rows are the same
    assert torch.Tensor.uniform_ is draw
