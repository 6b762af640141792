"""Statistics of a tensor that do not depend on its layout."""

from __future__ import annotations

import math

import torch

from common.recording.operation_format import MOST_ORDERED, TensorStatistics

MOST_ELEMENTS = 1 << 26  # of a tensor whose statistics are computed
CHUNK_SIZE = 1 << 22  # number of elements that are converted to float64 at once


def measure_tensor(tensor: torch.Tensor) -> TensorStatistics:
    """Return the statistics of a tensor: None if the tensor is empty, too large or not finite."""
    statistics: TensorStatistics = {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).replace("torch.", ""),
        "sum": None,
        "norm": None,
        "minimum": None,
        "maximum": None,
    }
    try:
        numbers = _compute_statistics(tensor.detach()) if 0 < tensor.numel() <= MOST_ELEMENTS else []
    except (RuntimeError, NotImplementedError, TypeError):  # a tensor without values, or of a type without a sum
        numbers = []
    if numbers and all(map(math.isfinite, numbers)):
        statistics["sum"], statistics["norm"], statistics["minimum"], statistics["maximum"] = numbers[:4]
        if len(numbers) == 4 + tensor.dim():  # a tensor of complex numbers has a further axis
            statistics["centers"] = numbers[4:]
    return statistics


def _compute_statistics(tensor: torch.Tensor) -> list[float]:
    """Return the sum, the norm, the minimum, the maximum and the centers. The device is asked once."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.device.type == "mps":  # has no float64
        tensor = tensor.cpu()
    rows = []
    for chunk in tensor.reshape(-1).split(CHUNK_SIZE):
        values = chunk.to(torch.float64)
        rows.append(torch.stack([values.sum(), values.dot(values), *values.aminmax()]))
    sums, squares, minima, maxima = torch.stack(rows).unbind(1)
    numbers: list[float] = torch.stack(
        [sums.sum(), squares.sum().sqrt(), minima.min(), maxima.max(), *_compute_centers(tensor)]
    ).tolist()
    return numbers


def _compute_centers(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the sum of the elements times their positions along each axis; nothing for a large tensor."""
    if tensor.numel() > MOST_ORDERED:
        return []
    values = tensor.to(torch.float64)
    centers = []
    for axis, size in enumerate(tensor.shape):
        sums = values.movedim(axis, -1).reshape(-1, size).sum(0)
        centers.append(sums.dot(torch.linspace(0, 1, size, dtype=torch.float64, device=sums.device)))
    return centers
