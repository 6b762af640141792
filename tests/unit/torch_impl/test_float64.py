"""PyTorch's functions that a float64 model computes in float64."""

import torch

from torch_impl.float64 import keep_float64


def test_groups_are_multiplied_in_float64() -> None:
    """The second group is empty, and the last row belongs to no group."""
    torch.manual_seed(0)
    rows, matrices = torch.randn(5, 3, dtype=torch.float64), torch.randn(3, 3, 2, dtype=torch.float64)
    bounds = torch.tensor([1, 1, 4], dtype=torch.int32)
    with keep_float64():
        products = torch.nn.functional.grouped_mm(rows.float(), matrices, offs=bounds)
    expected = torch.cat([rows[:1] @ matrices[0], rows[1:4] @ matrices[2], torch.zeros(1, 2, dtype=torch.float64)])
    torch.testing.assert_close(products, expected, rtol=0, atol=0)
