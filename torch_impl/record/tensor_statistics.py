"""Statistics of a tensor that do not depend on its layout."""

from __future__ import annotations

import math

import torch

from common.recording.operation_format import TensorStatistics

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
        statistics["sum"], statistics["norm"], statistics["minimum"], statistics["maximum"] = numbers
    return statistics


def _compute_statistics(tensor: torch.Tensor) -> list[float]:
    """Return the sum, the norm, the minimum and the maximum. The device is asked once."""
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
    numbers: list[float] = torch.stack([sums.sum(), squares.sum().sqrt(), minima.min(), maxima.max()]).tolist()
    return numbers
