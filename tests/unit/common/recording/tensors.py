"""Arrays that the observer of operations can observe."""

import numpy as np

from common.recording.operation_format import TensorStatistics


class Tensor(np.ndarray):
    """An array to which a weak reference is possible."""


def to_tensor(values: object) -> Tensor:
    """Return an array of float64, or of integers if it has axes and integers."""
    array = np.array(values)
    is_integer = array.ndim > 0 and array.dtype.kind == "i"
    return (array if is_integer else array.astype(np.float64)).view(Tensor)


def measure(tensor: Tensor) -> TensorStatistics:
    array = np.asarray(tensor, np.float64)
    is_finite = bool(np.isfinite(array).all())
    statistics: TensorStatistics = {
        "shape": list(array.shape),
        "dtype": str(tensor.dtype),
        "sum": float(array.sum()) if is_finite else None,
        "norm": float(np.linalg.norm(array)) if is_finite else None,
        "minimum": float(array.min()) if is_finite else None,
        "maximum": float(array.max()) if is_finite else None,
    }
    if is_finite:
        statistics["centers"] = [
            float(np.linspace(0, 1, size) @ np.moveaxis(array, axis, 0).reshape(size, -1).sum(1))
            for axis, size in enumerate(array.shape)
        ]
    return statistics
