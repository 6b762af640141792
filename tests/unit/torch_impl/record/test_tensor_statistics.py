"""Tests of the statistics of tensors."""

import pytest
import torch

from common.recording.operation_format import MOST_ORDERED
from torch_impl.record.tensor_statistics import measure_tensor

X = torch.tensor([[1.0, 2, 4], [8, 16, 32]])
CENTERS = [8.0 + 16 + 32, 2 / 2 + 16 / 2 + 4 + 32]


@pytest.mark.parametrize(
    ("tensor", "centers"),
    [
        (X, CENTERS),
        (X.t(), CENTERS[::-1]),
        (X.flip(0), [1 + 2 + 4, CENTERS[1]]),
        (X.bfloat16().requires_grad_(), CENTERS),
        (X.long(), CENTERS),
        (X.to_sparse(), CENTERS),
        (torch.tensor([False, True, True]), [1.5]),
        (torch.tensor([[5.0]]), [0, 0]),
        (torch.tensor(5.0), []),
    ],
)
def test_centers_are_sums_of_the_elements_times_their_positions(tensor: torch.Tensor, centers: list[float]) -> None:
    statistics = measure_tensor(tensor)
    assert statistics["centers"] == pytest.approx(centers)
    assert len(statistics["centers"]) == len(statistics["shape"])
    assert statistics["sum"] == tensor.to_dense().sum().item()


@pytest.mark.parametrize(
    ("tensor", "total"),
    [
        (torch.ones(MOST_ORDERED + 1), MOST_ORDERED + 1),
        (torch.tensor([3 + 0j, -4j]), -1),
        (torch.tensor([1.0, float("nan")]), None),
        (torch.zeros(0, 3), None),
    ],
    ids=["large", "complex", "not finite", "empty"],
)
def test_other_tensors_have_no_centers(tensor: torch.Tensor, total: float | None) -> None:
    statistics = measure_tensor(tensor)
    assert "centers" not in statistics
    assert statistics["sum"] == total
